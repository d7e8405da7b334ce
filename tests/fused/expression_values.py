"""Every operation of a kernel on numbers at which integers go wrong, beside what torch makes of the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_mods.fused.compiled import functions_of
from attn_mods.fused.expressions import TYPES, Text, expression

PAIRS = 256
"""Pairs of numbers a kernel is given; a power of two."""


class Operation(NamedTuple):
    """An operation and torch's function.

    ``divides`` leaves out divisors of 0, and -1, which overflows; ``shifts`` takes counts as the second operand.
    """

    name: str
    function: Callable[..., Any]
    operands: int = 2
    divides: bool = False
    shifts: bool = False


NUMBERS = (
    Operation("add", torch.add),
    Operation("sub", torch.sub),
    Operation("mul", torch.mul),
    Operation("square", torch.square, 1),
    Operation("neg", torch.neg, 1),
    Operation("abs", torch.abs, 1),
    Operation("sign", torch.sign, 1),
    Operation("floor_divide", torch.floor_divide, divides=True),
    Operation("remainder", torch.remainder, divides=True),
    Operation("truncate_divide", lambda a, b: torch.div(a, b, rounding_mode="trunc"), divides=True),
    Operation("fmod", torch.fmod, divides=True),
    Operation("minimum", torch.minimum),
    Operation("maximum", torch.maximum),
    Operation("clamp_min", torch.clamp_min),
    Operation("clamp_max", torch.clamp_max),
    Operation("relu", torch.relu, 1),
    Operation("and", torch.bitwise_and),
    Operation("or", torch.bitwise_or),
    Operation("xor", torch.bitwise_xor),
    Operation("not", torch.bitwise_not, 1),
    Operation("shift_left", torch.bitwise_left_shift, shifts=True),
    Operation("shift_right", torch.bitwise_right_shift, shifts=True),
    Operation("floor", torch.floor, 1),
    Operation("ceil", torch.ceil, 1),
    Operation("trunc", torch.trunc, 1),
    Operation("round", torch.round, 1),
    Operation("same", torch.clone, 1),
)
COMPARISONS = tuple(Operation(name, getattr(torch, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne"))
LOGICAL = tuple(
    Operation(f"logical_{name}", getattr(torch, f"logical_{name}"), 1 if name == "not" else 2)
    for name in ("and", "or", "xor", "not")
)
TRUTHS = (
    Operation("and", torch.bitwise_and),
    Operation("or", torch.bitwise_or),
    Operation("xor", torch.bitwise_xor),
    Operation("mul", torch.mul),
    Operation("add", torch.add),
    Operation("not", torch.bitwise_not, 1),
    Operation("same", torch.clone, 1),
)

ARITHMETIC = (torch.int64, torch.int32)
STORED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Row(NamedTuple):
    """One line of the kernel: an expression, its operands, and what torch computes."""

    what: str
    text: str
    a: Tensor
    b: Tensor
    expected: Tensor


def rows(device: str) -> Iterator[Row]:
    """All operations in all dtypes, and casts between all dtypes."""
    for dtype in ARITHMETIC:
        for operation in NUMBERS:
            yield _row(operation, dtype, dtype, device)
    for dtype in STORED:
        for operation in (*COMPARISONS, *LOGICAL):
            yield _row(operation, dtype, torch.bool, device)
        for other in STORED:
            yield _row(Operation("cast", lambda a, other=other: a.to(other), 1), dtype, other, device)
            yield _row(Operation("lt", torch.lt), dtype, torch.bool, device, other)
    for operation in TRUTHS:
        yield _row(operation, torch.bool, torch.bool, device)
    for dtype in (torch.int16, torch.int8, torch.uint8):
        for operation in (Operation("minimum", torch.minimum), Operation("maximum", torch.maximum)):
            yield _row(operation, dtype, dtype, device)


def _row(
    operation: Operation, dtype: torch.dtype, result: torch.dtype, device: str, second: torch.dtype | None = None
) -> Row:
    a, b = _pairs(operation, dtype, second or dtype, device)
    operands, texts = (a, b)[: operation.operands], [Text("a", dtype), Text("b", second or dtype)][: operation.operands]
    expected = operation.function(*operands)
    what = f"{operation.name} of {dtype}, {second or dtype}"
    assert expected.dtype == result, what
    return Row(what, expression(operation.name, result, texts, {}), a, b, expected)


def _pairs(operation: Operation, first: torch.dtype, second: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Pairs of numbers, repeated until there are ``PAIRS``."""
    values = list(itertools.product(_values(first), _values(second)))
    if operation.divides:
        values = [(a, b) for a, b in values if b not in (0, -1)]
    if operation.shifts:
        bits = torch.iinfo(first).bits
        counts = (0, 1, 2, bits - 2, bits - 1, bits, bits + 1, bits + 6, 2 * bits, -1, -bits)
        values = list(itertools.product(_values(first), counts))
    repeated = list(itertools.islice(itertools.cycle(values), PAIRS))
    a, b = zip(*repeated, strict=True)
    return torch.tensor(a, dtype=first, device=device), torch.tensor(b, dtype=second, device=device)


def _values(dtype: torch.dtype) -> list[int]:
    if dtype == torch.bool:
        return [0, 1]
    limits = torch.iinfo(dtype)
    values = {limits.min, limits.min + 1, limits.max - 1, limits.max, limits.max // 2, -100, -7, -1, 0, 1, 2, 7, 100}
    return sorted(value for value in values if limits.min <= value <= limits.max)


def computed(chosen: list[Row]) -> list[Tensor]:
    """What one kernel makes of all expressions."""
    lines = ["import triton", "import triton.language as tl"]
    lines += ["from attn_mods.kernels.arithmetic import floor_divide, shift_left, shift_right", ""]
    lines += ["@triton.jit", "def compute(first, second, out):", f"    at = tl.arange(0, {PAIRS})"]
    for number, row in enumerate(chosen):
        place = f"{number * PAIRS} + at"
        for name, memory, operand in (("a", "first", row.a), ("b", "second", row.b)):
            loaded = f"tl.load({memory} + {place})"
            narrow = f"{loaded} != 0" if operand.dtype == torch.bool else f"{loaded}.to({TYPES[operand.dtype]})"
            lines.append(f"    {name} = {narrow}")
        stored = Text("value", row.expected.dtype).to(torch.int64)
        lines += [f"    value = {row.text}", f"    tl.store(out + {place}, {stored})"]
    first = torch.cat([row.a.long() for row in chosen])
    second = torch.cat([row.b.long() for row in chosen])
    out = torch.empty_like(first)
    compute = functions_of("\n".join(lines) + "\n", f"<expressions {id(out)}>")["compute"]
    compute[(1,)](first, second, out)
    return list(out.view(-1, PAIRS))


def assert_as_torch(device: str) -> int:
    """Raise AssertionError, naming the operation and the numbers, unless kernels compute what torch does."""
    chosen = list(rows(device))
    for row, got in zip(chosen, computed(chosen), strict=True):
        differs = got != row.expected.long()
        if differs.any():
            place = int(differs.nonzero()[0])
            numbers = f"{int(row.a[place])}, {int(row.b[place])}"
            raise AssertionError(
                f"{row.what} at {numbers}: got {int(got[place])}, torch has {int(row.expected[place])}"
            )
    return len(chosen)
