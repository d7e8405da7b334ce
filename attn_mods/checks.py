"""Checks of user input. Every error says: entry, rule broken, value got, what to do instead."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, NoReturn, SupportsIndex, cast

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


def integer(
    name: str, field: str, value: object, minimum: int | None, remedy: str, ndim: tuple[int, ...] = (0,)
) -> int | Tensor:
    """An integer parameter: an int, or an integer tensor with one of ``ndim`` dimensions, all >= ``minimum``.

    Python's other integers, those of numpy among them, become ints; a bool is none. A tensor costs one
    synchronisation; its values are not read while compiling.
    """
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES:
            fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
        if value.ndim not in ndim:
            allowed = " or ".join(str(n) for n in ndim)
            fail(name, f"a tensor {field} must have {allowed} dimensions", describe(value), remedy)
        if minimum is not None and values_can_be_read() and value.numel() and int(value.min()) < minimum:
            fail(name, f"{field} must be >= {minimum}", f"a smallest value of {int(value.min())}", remedy)
        return value
    number = _plain_integer(value)
    if number is None:
        fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
    if minimum is not None and number < minimum:
        fail(name, f"{field} must be >= {minimum}", number, remedy)
    return number


def _plain_integer(value: object) -> int | None:
    """The int that a value is; None for a bool and for what is no integer."""
    if isinstance(value, (int, torch.SymInt)):
        return None if isinstance(value, bool) else cast(int, value)
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        return None


def integer_field(part: Any, field: str, minimum: int | None, remedy: str, ndim: tuple[int, ...] = (0,)) -> None:
    """Check ``integer`` on a field of a frozen dataclass that has a name, and keep it as an int or a tensor."""
    _keep(part, field, integer(part.name, field, getattr(part, field), minimum, remedy, ndim))


def static_integer_field(part: Any, field: str, minimum: int | None, remedy: str) -> None:
    """Check ``static_integer`` on a field of a frozen dataclass that has a name, and keep it as an int."""
    _keep(part, field, static_integer(part.name, field, getattr(part, field), minimum, remedy))


def _keep(part: Any, field: str, checked: object) -> None:
    if checked is not getattr(part, field):
        object.__setattr__(part, field, checked)


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


def static_integer(name: str, field: str, value: object, minimum: int | None, remedy: str) -> int:
    """An integer that is compiled into the rule: an int >= ``minimum``, no tensor."""
    if isinstance(value, Tensor):
        fail(name, f"{field} must be an int", describe(value), remedy, TypeError)
    return cast(int, integer(name, field, value, minimum, remedy))


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
    number = _plain_integer(value)
    if number is None:
        fail(name, f"{field} must be an integer", describe(value), remedy, TypeError)
    return number


def needs_offset(name: str, q_len: int, kv_len: int) -> None:
    """Raise if a "self" rule is called without ``q_offset`` on lengths that differ: any alignment would be a guess."""
    if q_len != kv_len:
        fail(
            name,
            "q_len != kv_len needs q_offset, the absolute position of the first query",
            f"q_len={q_len}, kv_len={kv_len}",
            f"pass q_offset={kv_len - q_len} if the queries are the last {q_len} positions, 0 if the first"
            if q_len < kv_len
            else "pass q_offset=0 if the first query and the first key are one position",
        )


def queries_end(name: str, total: int | None, q_end: int | None, remedy: str, unit: str = "position") -> None:
    """Raise if a query lies beyond the ``total`` positions that parameters describe; None is not known."""
    if total is not None and q_end is not None and q_end > total:
        fail(name, f"the queries must end at or before {unit} {total}", q_end, remedy)


def sink(name: str, value: object) -> Tensor:
    """The sink as one logit per query head, float [H] or [1]; -inf is no sink. Costs one synchronisation."""
    remedy = "pass one logit per query head, or one for all"
    checked = tensor(name, "sink", value, ndim=(0, 1), kind="float", remedy=remedy)
    if values_can_be_read() and not checked.is_meta and not bool((checked.detach() < math.inf).all()):
        fail(name, "sink must be a number below infinity", checked.tolist(), "pass finite logits, or -inf for none")
    return checked.reshape(1) if checked.ndim == 0 else checked


def lengths(name: str, field: str, value: object, device: torch.device | str | None = None) -> Tensor:
    """Document lengths as boundaries: whole numbers of tokens [documents], >= 0, to int32 [documents + 1]."""
    remedy = "pass the number of tokens of each document, 0 for an empty one"
    checked = torch.as_tensor(value, device=device)
    if checked.numel() == 0:
        fail(name, f"{field} must name at least one document", describe(value), remedy)
    integer(name, field, tensor(name, field, checked, ndim=(1,), kind="integer", remedy=remedy), 0, remedy, ndim=(1,))
    return torch.nn.functional.pad(checked.cumsum(0), (1, 0)).to(torch.int32)


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


def tensors(name: str, **values: object) -> None:
    """Check that arguments are tensors with values: dense, and not on the meta device."""
    for label, value in values.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            fail(name, f"{label} must be a tensor", kind, "convert it with torch.as_tensor", TypeError)
        if value.is_meta or value.layout != torch.strided:
            got = "one on the meta device" if value.is_meta else f"one of layout {value.layout}"
            fail(name, f"{label} must be a dense tensor that holds values", got, "pass a strided tensor on a device")


def boolean(name: str, field: str, value: object, remedy: str) -> None:
    """Check that a switch is True or False."""
    if not isinstance(value, bool):
        fail(name, f"{field} must be True or False", describe(value), remedy, TypeError)


def attention_inputs(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check q [B, Hq, q_len, D], k [B, Hkv, kv_len, D] and v [B, Hkv, kv_len, Dv] against each other."""
    tensors(name, q=q, k=k, v=v)
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
    if q.shape[2] == 0 or k.shape[2] == 0:
        got = f"q_len={q.shape[2]}, kv_len={k.shape[2]}"
        fail(name, "there must be at least one query and one key", got, "skip the call")
    if 0 in (q.shape[0], q.shape[1], q.shape[3], v.shape[3]):
        fail(name, "q, k and v must have at least one batch row, head and dimension", shapes, "skip the call")
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
