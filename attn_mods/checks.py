"""Checks of user input. Every error says: entry, rule broken, value got, what to do instead."""

from __future__ import annotations

import difflib
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NoReturn, SupportsIndex, cast

import torch
from torch import Tensor

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

LARGEST = 2**31 - 1
"""Largest parameter and position: kernels count with 32 bits, and rules multiply and add two of these in 64."""

SMALLEST_FLOAT, LARGEST_FLOAT = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
"""Magnitudes that float32 holds with all its digits: kernels compute in it."""

LONGEST_VALUE = 120
"""Characters of a value that a message repeats."""


def fail(name: str, rule: str, got: object, remedy: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raise ``error`` with the one form that all messages of the package have."""
    raise error(f"{name}: {rule}, got {got}; {remedy}.")


def describe(value: object) -> str:
    """A value in an error message: short for tensors, the beginning of its repr otherwise."""
    if isinstance(value, Tensor):
        return _describe_tensor(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({type(value).__name__})"


def _describe_tensor(value: Tensor) -> str:
    if not is_plain(value):
        return f"a tensor of dtype {value.dtype} that is {'nested' if value.is_nested else value.layout}"
    if value.numel() == 1 and values_can_be_read(value):
        return f"tensor({value.detach().reshape(()).item()}, dtype={value.dtype})"
    where = " on the meta device" if value.is_meta else ""
    return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}{where}"


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is dense: its values are laid out by strides."""
    return value.layout == torch.strided and not value.is_nested


def values_can_be_read(*tensors: Tensor) -> bool:
    """Whether values may be read now: not while a compiler traces, on the meta device, or of many under vmap."""
    return not torch.compiler.is_compiling() and not any(tensor.is_meta or _is_many(tensor) for tensor in tensors)


def _is_many(tensor: Tensor) -> bool:
    """Whether the tensor stands for several under torch.func.vmap, inside of other transforms too."""
    transforms: Any = torch._C._functorch
    while transforms.is_functorch_wrapped_tensor(tensor):
        if transforms.is_batchedtensor(tensor):
            return True
        tensor = transforms.get_unwrapped(tensor)
    return False


def extremes(value: Tensor) -> tuple[float, float] | None:
    """The smallest and the largest value by one synchronisation, NaN if there is one; None if none can be read."""
    if not values_can_be_read(value) or value.numel() == 0:
        return None
    smallest, largest = torch.stack(torch.aminmax(value.detach())).tolist()
    return smallest, largest


def integer(
    name: str, field: str, value: object, minimum: int | None, remedy: str, ndim: tuple[int, ...] = (0,)
) -> int | Tensor:
    """An integer parameter: an int, or an integer tensor with one of ``ndim`` dimensions, all >= ``minimum``.

    Python's other integers, those of numpy among them, become ints; a bool is none. A tensor costs one
    synchronisation; its values are not read while compiling. None may be larger than ``LARGEST``.
    """
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES:
            fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
        if value.ndim not in ndim:
            allowed = " or ".join(str(n) for n in ndim)
            fail(name, f"a tensor {field} must have {allowed} dimensions", describe(value), remedy)
        holds_values(name, field, value)
        found = extremes(value)
        if found is not None:
            _check_range(name, field, found, minimum, remedy)
        return value
    number = _plain_integer(value)
    if number is None:
        fail(name, f"{field} must be an int or an integer tensor", describe(value), remedy, TypeError)
    _check_range(name, field, number, minimum, remedy)
    return number


def _check_range(name: str, field: str, value: float | tuple[float, float], minimum: int | None, remedy: str) -> None:
    """Check a number, or the smallest and the largest of several."""
    smallest, largest = value if isinstance(value, tuple) else (value, value)
    lower = -LARGEST if minimum is None else minimum
    if smallest < lower:
        got = f"a smallest value of {smallest}" if isinstance(value, tuple) else value
        fail(name, f"{field} must be >= {lower}", got, remedy)
    if largest > LARGEST:
        got = f"a largest value of {largest}" if isinstance(value, tuple) else value
        fail(name, f"{field} must be <= {LARGEST}", got, remedy)


def holds_values(name: str, field: str, value: Tensor) -> None:
    """Check that a tensor is a dense one with values: parameters of masks are read when blocks are listed."""
    if value.is_meta or not is_plain(value):
        remedy = 'pass a dense tensor on a device that holds values, such as "cpu"'
        fail(name, f"{field} must hold values", describe(value), remedy)


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


def number_field(part: Any, field: str, remedy: str) -> None:
    """Check ``number`` on a field of a frozen dataclass that has a name, and keep it as a float."""
    _keep(part, field, number(part.name, field, getattr(part, field), remedy))


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
    """The value, if it is a tensor of ``kind`` ("integer", "boolean" or "float") with one of ``ndim`` dimensions.

    A float tensor may be on the meta device, where modules are described before they are made.
    """
    article = "an" if kind == "integer" else "a"
    if not isinstance(value, Tensor):
        fail(name, f"{field} must be {article} {kind} tensor", describe(value), remedy, TypeError)
    matches = {
        "integer": value.dtype in INTEGER_DTYPES,
        "boolean": value.dtype == torch.bool,
        "float": value.dtype in FLOAT_DTYPES,
    }[kind]
    if not matches:
        fail(name, f"{field} must be {article} {kind} tensor", describe(value), remedy, TypeError)
    if value.ndim not in ndim:
        allowed = " or ".join(str(n) for n in ndim)
        fail(name, f"{field} must have {allowed} dimensions", describe(value), remedy)
    if kind != "float" or not value.is_meta:
        holds_values(name, field, value)
    return value


def static_integer(name: str, field: str, value: object, minimum: int | None, remedy: str) -> int:
    """An integer that is compiled into the rule: an int >= ``minimum``, no tensor."""
    number = None if isinstance(value, Tensor) else _plain_integer(value)
    if number is None:
        fail(name, f"{field} must be an int", describe(value), remedy, TypeError)
    _check_range(name, field, number, minimum, remedy)
    return number


def learnable(
    name: str,
    field: str,
    value: object,
    *,
    ndim: tuple[int, ...],
    remedy: str,
    hides: bool = False,
    maximum: float = math.inf,
) -> Tensor:
    """A float tensor that may be trained, with one of ``ndim`` dimensions; a 0-d one is taken as one element.

    Kernels have no gradient for a captured 0-d tensor. Its values are read by one synchronisation, unless a compiler
    traces or it is on the meta device.

    Args:
        name: Entry named in messages.
        field: The parameter.
        value: What was given.
        ndim: Numbers of dimensions it may have.
        remedy: What to do instead.
        hides: Whether it is added to scores, so that -inf hides a key; else all values must be finite.
        maximum: Largest value.
    """
    checked = tensor(name, field, value, ndim=(0, *ndim) if 1 in ndim else ndim, kind="float", remedy=remedy)
    if checked.numel() == 0:
        fail(name, f"{field} must not be empty", describe(checked), remedy)
    finite(name, field, checked, remedy, hides, maximum)
    return torch.atleast_1d(checked)  # type: ignore[no-any-return, no-untyped-call]  # a tensor; torch's has no types


def finite(name: str, field: str, value: Tensor, remedy: str, hides: bool = False, maximum: float = math.inf) -> None:
    """Check by one synchronisation that no value is NaN, infinite (but for -inf if it ``hides``) or too large."""
    found = extremes(value)
    if found is None:
        return
    for extreme in found:
        if not math.isfinite(extreme) and not (hides and extreme == -math.inf):
            rule = f"{field} must be finite, or -inf where it hides a key" if hides else f"{field} must be finite"
            fail(name, rule, f"a value of {extreme}", remedy)
    if found[1] > maximum:
        fail(name, f"{field} must be <= {maximum:g}", f"up to {found[1]}", remedy)


def number(name: str, field: str, value: object, remedy: str) -> float:
    """The value as a float, if it is a number that is finite in float32 too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail(name, f"{field} must be a number", describe(value), remedy, TypeError)
    if not abs(value) <= LARGEST_FLOAT:
        fail(name, f"{field} must be finite in float32", describe(value), remedy)
    return float(value)


def boundaries(name: str, field: str, value: object) -> int | None:
    """Check document boundaries: an integer tensor [documents + 1] that starts at 0 and never falls.

    Returns:
        The last boundary, that is the number of positions; None while compiling.
    """
    remedy = "pass the running sum of the document lengths with a leading 0, or use Document.from_lengths(lengths)"
    value = tensor(name, field, value, ndim=(1,), kind="integer", remedy=remedy)
    if value.numel() < 1:
        fail(name, f"{field} must hold at least the leading 0", describe(value), remedy)
    if not values_can_be_read(value):
        return None
    listed: list[int] = value.tolist()
    if listed[0] != 0:
        fail(name, f"{field} must start at 0", listed[0], remedy)
    for earlier, later in itertools.pairwise(listed):
        if later < earlier:
            fail(name, f"{field} must never fall", f"{earlier} followed by {later}", remedy)
    return listed[-1]


def offset(name: str, field: str, value: object) -> int | Tensor:
    """An offset as an int or a 0-d integer tensor; a one-element tensor is taken as 0-d.

    The value of a tensor is read on the CPU alone: on another device that would synchronise at every call.
    """
    remedy = "pass an int, a 0-d or a one-element integer tensor: the absolute position of the first row"
    if isinstance(value, Tensor):
        if value.dtype not in INTEGER_DTYPES:
            fail(name, f"{field} must be an integer", describe(value), remedy, TypeError)
        holds_values(name, field, value)
        if value.numel() != 1:
            fail(name, f"{field} must be one number", describe(value), remedy)
        checked: int | Tensor = value if value.ndim == 0 else value.reshape(())
    else:
        number = _plain_integer(value)
        if number is None:
            fail(name, f"{field} must be an integer", describe(value), remedy, TypeError)
        checked = number
    position = known_offset(checked)
    if position is not None and not -LARGEST <= position <= LARGEST:
        fail(name, f"{field} must lie in {-LARGEST} .. {LARGEST}", position, remedy)
    return checked


def known_offset(value: int | Tensor) -> int | None:
    """The value of an offset, or None if only the device or a compiler knows it."""
    if not isinstance(value, Tensor):
        return value
    return int(value) if value.device.type == "cpu" and values_can_be_read(value) else None


def lengths_of_call(name: str, q_len: object, kv_len: object) -> tuple[int, int]:
    """Numbers of queries and of keys, as many keys as queries if None."""
    remedy = "pass numbers of tokens"
    queries = static_integer(name, "q_len", q_len, 0, remedy)
    return queries, queries if kv_len is None else static_integer(name, "kv_len", kv_len, 0, remedy)


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
    if checked.numel() == 0:
        fail(name, "sink must not be empty", describe(checked), remedy)
    if values_can_be_read(checked) and not bool((checked.detach() < math.inf).all()):
        got = describe(checked.tolist())
        fail(name, "sink must be a number below infinity", got, "pass finite logits, or -inf for none")
    return checked.reshape(1) if checked.ndim == 0 else checked


def integers(
    name: str, field: str, value: object, remedy: str, *, ndim: tuple[int, ...], device: torch.device | str | None
) -> Tensor:
    """An integer tensor of what a sequence, an array or a tensor lists, on ``device`` if one is given."""
    where = None if device is None else usable_device(name, device)
    listed = _as_tensor(value, where)
    if listed is None:
        fail(name, f"{field} must be a sequence of ints or an integer tensor", describe(value), remedy, TypeError)
    if listed.numel() == 0:
        fail(name, f"{field} must not be empty", describe(value), remedy)
    return tensor(name, field, listed, ndim=ndim, kind="integer", remedy=remedy)


def _as_tensor(value: Any, device: torch.device | None) -> Tensor | None:
    if not isinstance(value, Tensor) and not hasattr(value, "__len__"):
        return None
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def lengths(name: str, field: str, value: object, device: torch.device | str | None = None) -> Tensor:
    """Document lengths as boundaries: whole numbers of tokens [documents], >= 0, to int32 [documents + 1]."""
    remedy = "pass the number of tokens of each document, 0 for an empty one"
    listed = integers(name, field, value, remedy, ndim=(1,), device=device)
    if values_can_be_read(listed):
        numbers: list[int] = listed.tolist()
        _check_range(name, field, (min(numbers), max(numbers)), 0, remedy)
        if sum(numbers) > LARGEST:
            fail(name, f"the sum of {field} must be <= {LARGEST}", sum(numbers), "split the packed sequence")
    return torch.nn.functional.pad(listed.cumsum(0), (1, 0)).to(torch.int32)


def broadcast(name: str, what: str, *sizes: int, parts: Sequence[str] = ()) -> int:
    """The common size of an axis on which each size is 1 or the same number; ``parts`` names whose sizes these are."""
    common = 1
    for size in sizes:
        if common != 1 and size != 1 and size != common:
            labels = [f"{part} " for part in parts] or [""] * len(sizes)
            got = " and ".join(f"{label}{size}" for label, size in zip(labels, sizes, strict=True))
            remedy = "make the per-batch and per-head parameters the same length"
            fail(name, f"the {what} of its parts must be 1 or equal", got, remedy)
        common = size if size != 1 else common
    return common


def usable_device(name: str, value: object, meta: bool = False) -> torch.device:
    """The device, if tensors can be made there now.

    Args:
        name: Whose name messages bear.
        value: What was given.
        meta: Whether tensors without values serve too.
    """
    remedy = 'pass a device of this machine, such as "cpu", or leave device out'
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        fail(name, "device must be a torch.device or the name of one", describe(value), remedy, TypeError)
    found = _device_of_empty(value)
    if isinstance(found, str):
        fail(name, "device must be one that holds tensors here", f"{str(value)!r} ({found})", remedy)
    if found.type == "meta" and not meta:
        fail(name, "device must be one that holds values", "'meta'", remedy)
    return found


def device_of_lists(name: str, own: torch.device | None, asked: object) -> torch.device:
    """Where block lists are made: the device asked for, else ``own``, that of the parameters, else torch's default."""
    if asked is None:
        asked = own if own is not None else torch.get_default_device()
    found = usable_device(name, asked)
    if own is not None and own != found:
        fail(name, f"its tensors must be on {found}", own, f'move them with .to("{found}")')
    return found


_have_held: set[torch.device] = set()
"""Devices that tensors were made on: making one on a GPU takes longer than all the other checks of a call."""


def _device_of_empty(value: str | int | torch.device) -> torch.device | str:
    """Where a tensor made there is, or the first line of torch's complaint."""
    try:
        if torch.compiler.is_compiling():
            return torch.empty(0, device=value).device
        asked = torch.device(value)
        if asked.type == "cuda" and asked.index is None:
            asked = torch.device("cuda", torch.cuda.current_device())
        if asked not in _have_held:
            asked = torch.empty(0, device=asked).device
            _have_held.add(asked)
        return asked
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch without CUDA raises AssertionError
        return str(error).strip().partition("\n")[0]


# Asked while a compiler traces a call too, which cannot look into the comparison.
@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch's has no types
def near_misses(word: str, choices: tuple[str, ...], most: int) -> str:
    """The choices that ``word`` may be a slip of the pen for, joined by "or"; empty if there is none."""
    return " or ".join(difflib.get_close_matches(word, choices, n=most, cutoff=0.5))


def text(name: str, field: str, value: object, remedy: str) -> None:
    """Check that a value is a text."""
    if not isinstance(value, str):
        fail(name, f"{field} must be a text", describe(value), remedy, TypeError)


def boolean(name: str, field: str, value: object, remedy: str) -> None:
    """Check that a switch is True or False."""
    if not isinstance(value, bool):
        fail(name, f"{field} must be True or False", describe(value), remedy, TypeError)
