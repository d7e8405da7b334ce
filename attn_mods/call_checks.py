"""Checks of one call of attention: q, k and v against each other, and a recipe against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import FlexKernelOptions

from attn_mods import checks
from attn_mods.recipe import Recipe

OPTIONS: dict[str, type | tuple[str, ...]] = {
    name: get_args(hint) or hint for name, hint in get_type_hints(FlexKernelOptions).items()
}
"""The options that torch documents, with their type or the texts they may be."""

OF_THE_CALL = ("BACKEND", "FORCE_USE_FLEX_ATTENTION")
"""Options that no pass has for itself."""


def check_tensors(name: str, **values: object) -> None:
    """Check that q, k and v are dense tensors that hold values.

    Raises:
        TypeError: Something else than a tensor.
        ValueError: A tensor of another layout, or on the meta device.
    """
    for label, value in values.items():
        if not isinstance(value, Tensor):
            got = type(value).__name__
            checks.fail(name, f"{label} must be a tensor", got, "convert it with torch.as_tensor", TypeError)
        if value.is_meta or not checks.is_plain(value):
            layout = "nested" if value.is_nested else value.layout
            got = "one on the meta device" if value.is_meta else f"one of layout {layout}"
            remedy = "pass a strided tensor on a device"
            checks.fail(name, f"{label} must be a dense tensor that holds values", got, remedy)


def check_call(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check tensors q [B, Hq, q_len, D], k [B, Hkv, kv_len, D] and v [B, Hkv, kv_len, Dv] against each other.

    Raises:
        ValueError: Shapes or devices that do not fit.
        TypeError: Dtypes that no backend computes, or that differ.
    """
    _check_shapes(name, q, k, v)
    if len({q.device, k.device, v.device}) > 1:
        got = f"{q.device}, {k.device}, {v.device}"
        checks.fail(name, "q, k and v must be on one device", got, "move them with .to")
    for label, value in (("q", q), ("k", k), ("v", v)):
        if value.dtype not in checks.FLOAT_DTYPES:
            remedy = "convert it with .to(torch.float32)"
            checks.fail(name, f"{label} must be float16, bfloat16, float32 or float64", value.dtype, remedy, TypeError)
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        got = f"{q.dtype}, {k.dtype}, {v.dtype}"
        remedy = "convert them with .to, or run under autocast"
        checks.fail(name, "q, k and v must have one dtype", got, remedy, TypeError)


def check_kernel_options(name: str, options: Mapping[str, Any] | None) -> None:
    """Check that options are a dict of those that torch documents, for both passes or one, and of their types.

    Others that its kernels read are refused: some, such as the scale, would win over what the call says.

    Raises:
        TypeError: Something that is no dict, a name that is no text, or a value of another type.
        ValueError: A name that torch does not document, or options that exclude each other or the backend.
    """
    remedy = "pass some of torch's FlexKernelOptions, such as {'BLOCK_M': 64}"
    if options is not None and not isinstance(options, Mapping):
        checks.fail(name, "kernel_options must be a dict", checks.describe(options), remedy, TypeError)
    for option, value in (options or {}).items():
        got = f"{option!r}: {checks.describe(value)}"
        if type(option) is not str:
            checks.fail(name, "kernel_options must map names to values", got, remedy, TypeError)
        both = without_pass(option)
        if both not in OPTIONS or (both in OF_THE_CALL and both != option):
            known = f"use some of {', '.join(sorted(OPTIONS))}"
            known = f"{known}; all but {' and '.join(OF_THE_CALL)} may have fwd_ or bwd_ before them, for one pass"
            checks.fail(name, "kernel_options must be options that torch documents", got, known)
        if not _fits(value, OPTIONS[both]):
            checks.fail(name, f"{option} must be {_told(OPTIONS[both])}", got, remedy, TypeError)
    if options is not None and options.get("BACKEND") == "FLASH":
        instead = 'leave it out and pass backend="flex_flash"'
        checks.fail(name, "kernel_options must leave the backend as it is", "'BACKEND': 'FLASH'", instead)
    if options is not None and all(each in options for each in OF_THE_CALL):
        rule = f"{' and '.join(OF_THE_CALL)} exclude each other"
        checks.fail(name, rule, "both", "leave one out")


def _fits(value: object, wanted: type | tuple[str, ...]) -> bool:
    if isinstance(wanted, tuple):
        return type(value) is str and value in wanted
    return type(value) is wanted and value >= 0  # type: ignore[operator]  # an int or a bool


def _told(wanted: type | tuple[str, ...]) -> str:
    if isinstance(wanted, tuple):
        return f"one of {', '.join(wanted)}"
    return "True or False" if wanted is bool else "a whole number, not negative"


def without_pass(option: str) -> str:
    """The option of both passes that one of the forward or backward pass overrides."""
    return option[4:] if option.startswith(("fwd_", "bwd_")) else option


def check_device(recipe: Recipe, device: torch.device) -> None:
    """Check that the recipe's tensors, and those that users' functions in it refer to, are where q is.

    Raises:
        ValueError: They are elsewhere.
    """
    if recipe.device not in (None, device):
        remedy = f'move it with .to("{device}"), and what a function of yours refers to by hand'
        checks.fail(recipe.name, f"its tensors must be on {device} as q is", recipe.device, remedy)


def check_sizes(recipe: Recipe, q: Tensor) -> None:
    """Check that parameters per batch or per head have as many as q.

    Raises:
        ValueError: They have not.
    """
    if recipe.sink is not None:
        _check_sizes(recipe.name, "sink", (1, recipe.sink.shape[0]), q)
    _check_sizes(recipe.name, "parameters", recipe.batch_and_heads(), q)


def _check_shapes(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        checks.fail(name, "q, k and v must have 4 dimensions [B, H, length, D]", shapes, "unsqueeze the missing ones")
    if q.shape[0] != k.shape[0] or k.shape[0] != v.shape[0]:
        checks.fail(name, "q, k and v must have the same batch size", shapes, "expand the smaller one")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        checks.fail(name, "k and v must have the same heads and length", shapes, "check what is passed as v")
    if q.shape[3] != k.shape[3]:
        checks.fail(name, "q and k must have the same head dimension", shapes, "check the projections")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        rule = "the number of query heads must be a multiple of that of key heads"
        checks.fail(name, rule, shapes, "repeat or drop heads")
    if q.shape[2] == 0 or k.shape[2] == 0:
        got = f"q_len={q.shape[2]}, kv_len={k.shape[2]}"
        checks.fail(name, "there must be at least one query and one key", got, "skip the call")
    if 0 in (q.shape[0], q.shape[1], q.shape[3], v.shape[3]):
        checks.fail(name, "q, k and v must have at least one batch row, head and dimension", shapes, "skip the call")


def _check_sizes(name: str, what: str, own: tuple[int, int], q: Tensor) -> None:
    for axis, size, wanted in (("B", own[0], q.shape[0]), ("Hq", own[1], q.shape[1])):
        # Not `in`: a compiler compares sizes it holds as symbols by identity there.
        if size != 1 and size != wanted:
            remedy = f"give it {wanted}, or one for all"
            checks.fail(name, f"its {what} must have {axis} = {wanted} as q has, or 1", size, remedy)
