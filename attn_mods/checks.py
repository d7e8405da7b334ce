"""Checks of user input. Every error says: entry, rule broken, value got, what to do instead."""

from __future__ import annotations

import itertools
from typing import NoReturn, cast

import torch
from torch import Tensor

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def fail(name: str, rule: str, got: object, remedy: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise ``error`` with the one form that all messages of the package have."""
    raise error(f"{name}: {rule}, got {got}; {remedy}.")


def describe(value: object) -> str:
    """A value in an error message: short for tensors, repr otherwise."""
    if isinstance(value, Tensor):
        if value.numel() == 1 and not torch.compiler.is_compiling():
            return f"tensor({value.detach().reshape(()).item()}, dtype={value.dtype})"
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return repr(value)


def values_can_be_read() -> bool:
    """Whether tensor values may be read now: not while a compiler traces the construction."""
    return not torch.compiler.is_compiling()


def integer(name: str, field: str, value: object, minimum: int, remedy: str, ndim: tuple[int, ...] = (0,)) -> None:
    """Check an integer parameter: an int, or an integer tensor with one of ``ndim`` dimensions, all >= ``minimum``.

    A tensor costs one synchronisation; its values are not read while compiling.
    """
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES:
            fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
        if value.ndim not in ndim:
            allowed = " or ".join(str(n) for n in ndim)
            fail(name, f"a tensor {field} must have {allowed} dimensions", describe(value), remedy)
        if values_can_be_read() and value.numel() and int(value.min()) < minimum:
            fail(name, f"{field} must be >= {minimum}", f"a smallest value of {int(value.min())}", remedy)
    elif isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
    elif value < minimum:
        fail(name, f"{field} must be >= {minimum}", value, remedy)


def tensor(
    name: str,
    field: str,
    value: object,
    *,
    ndim: tuple[int, ...],
    kind: str,
    remedy: str,
) -> Tensor:
    """The value, if it is a tensor of ``kind`` ("integer", "boolean" or "float") with one of ``ndim`` dimensions."""
    article = "an" if kind == "integer" else "a"
    if not isinstance(value, Tensor):
        fail(name, f"{field} must be {article} {kind} tensor", describe(value), remedy, TypeError)
    matches = {
        "integer": value.dtype in INTEGER_DTYPES,
        "boolean": value.dtype == torch.bool,
        "float": value.dtype.is_floating_point,
    }[kind]
    if not matches:
        fail(name, f"{field} must be {article} {kind} tensor", describe(value), remedy, TypeError)
    if value.ndim not in ndim:
        allowed = " or ".join(str(n) for n in ndim)
        fail(name, f"{field} must have {allowed} dimensions", describe(value), remedy)
    return value


def static_integer(name: str, field: str, value: object, minimum: int, remedy: str) -> None:
    """Check an integer that is compiled into the rule: an int >= ``minimum``, no tensor."""
    if isinstance(value, Tensor):
        fail(name, f"{field} must be an int", describe(value), remedy, TypeError)
    integer(name, field, value, minimum, remedy)


def learnable(name: str, field: str, value: object, *, ndim: tuple[int, ...], remedy: str) -> Tensor:
    """A float tensor that may be trained, with one of ``ndim`` dimensions; a 0-d one is taken as one element.

    Kernels have no gradient for a captured 0-d tensor.
    """
    checked = tensor(name, field, value, ndim=(0, *ndim) if 1 in ndim else ndim, kind="float", remedy=remedy)
    if checked.numel() == 0:
        fail(name, f"{field} must not be empty", describe(checked), remedy)
    return torch.atleast_1d(checked)  # type: ignore[no-any-return, no-untyped-call]


def boundaries(name: str, field: str, value: object) -> int | None:
    """Check document boundaries: an integer tensor [documents + 1] that starts at 0 and never falls.

    Returns:
        The last boundary, that is the number of positions; None while compiling.
    """
    remedy = "pass the running sum of the document lengths with a leading 0, or use Document.from_lengths(lengths)"
    value = tensor(name, field, value, ndim=(1,), kind="integer", remedy=remedy)
    if value.numel() < 1:
        fail(name, f"{field} must hold at least the leading 0", describe(value), remedy)
    if not values_can_be_read():
        return None
    listed: list[int] = value.tolist()
    if listed[0] != 0:
        fail(name, f"{field} must start at 0", listed[0], remedy)
    for earlier, later in itertools.pairwise(listed):
        if later < earlier:
            fail(name, f"{field} must never fall", f"{earlier} followed by {later}", remedy)
    return listed[-1]


def offset(name: str, field: str, value: object) -> int | Tensor:
    """An offset as an int or a 0-d integer tensor; a one-element tensor is taken as 0-d."""
    remedy = "pass an int, a 0-d or a one-element integer tensor: the absolute position of the first row"
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES:
            fail(name, f"{field} must be an integer", describe(value), remedy, TypeError)
        if value.numel() != 1:
            fail(name, f"{field} must be one number", describe(value), remedy)
        return value if value.ndim == 0 else value.reshape(())
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        fail(name, f"{field} must be an integer", describe(value), remedy, TypeError)
    return cast(int, value)


def broadcast(name: str, what: str, *sizes: int) -> int:
    """The common size of an axis on which each size is 1 or the same number."""
    larger = {size for size in sizes if size != 1}
    if len(larger) > 1:
        fail(
            name,
            f"the {what} of its parts must be 1 or equal",
            " and ".join(str(size) for size in sizes),
            "make the per-batch and per-head parameters the same length",
        )
    return larger.pop() if larger else 1


def attention_inputs(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check q [B, Hq, q_len, D], k [B, Hkv, kv_len, D] and v [B, Hkv, kv_len, Dv] against each other."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        fail(name, "q, k and v must have 4 dimensions [B, H, length, D]", shapes, "unsqueeze the missing ones")
    if q.shape[0] != k.shape[0] or k.shape[0] != v.shape[0]:
        fail(name, "q, k and v must have the same batch size", shapes, "expand the smaller one")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        fail(name, "k and v must have the same heads and length", shapes, "check what is passed as v")
    if q.shape[3] != k.shape[3]:
        fail(name, "q and k must have the same head dimension", shapes, "check the projections")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        fail(name, "the number of query heads must be a multiple of that of key heads", shapes, "repeat or drop heads")
    if len({q.device, k.device, v.device}) > 1:
        fail(name, "q, k and v must be on one device", f"{q.device}, {k.device}, {v.device}", "move them with .to")
    for label, value in (("q", q), ("k", k), ("v", v)):
        if not value.dtype.is_floating_point:
            fail(name, f"{label} must be floating point", value.dtype, "convert it with .to(torch.float32)", TypeError)
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        dtypes = f"{q.dtype}, {k.dtype}, {v.dtype}"
        fail(name, "q, k and v must have one dtype", dtypes, "convert them with .to, or run under autocast", TypeError)


def sizes(name: str, own: tuple[int, int], q: Tensor) -> None:
    """Check that parameters per batch or per head have as many as q."""
    for axis, size, wanted in (("B", own[0], q.shape[0]), ("Hq", own[1], q.shape[1])):
        if size not in (1, wanted):
            remedy = f"pass parameters for {wanted}, or one for all"
            fail(name, f"its parameters must have {axis} = {wanted} as q has, or 1", size, remedy)
