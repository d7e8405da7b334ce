"""One operation as a Triton expression that computes what torch does, bit for bit: integers and booleans only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from attn_mods.fused.form import Unfit

TYPES = {
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}

# Arithmetic in narrower dtypes is left to torch.
_ARITHMETIC = (torch.int64, torch.int32, torch.bool)

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


class Text(NamedTuple):
    """An expression and the dtype of its value."""

    text: str
    dtype: torch.dtype

    def to(self, dtype: torch.dtype) -> str:
        """The expression in another dtype."""
        if dtype == self.dtype:
            return self.text
        return f"({self.text} != 0)" if dtype == torch.bool else f"{self.text}.to({TYPES[dtype]})"


def literal(value: int | bool) -> Text:
    """A constant."""
    dtype = torch.bool if isinstance(value, bool) else torch.int64
    if dtype == torch.int64 and not -(1 << 63) <= value < 1 << 63:
        raise Unfit("a number beyond int64")
    return Text(f"tl.full((), {int(value)}, {TYPES[dtype]})", dtype)


def expression(operation: str, dtype: torch.dtype, operands: list[Text], keywords: dict[str, Text]) -> str:
    """The value of an operation in ``dtype``.

    Integers are compared in int64, whatever their dtypes. That is torch's result because a step is of a form only if no
    number is changed by a cast to the dtype of the other operands (``tiles.normalise.is_direct``).

    Args:
        operation: Canonical name.
        dtype: What torch computes it in.
        operands: Its operands.
        keywords: Those given by name.

    Raises:
        Unfit: An operation that has no expression here.
    """
    if keywords and operation not in ("clamp", "cast") and set(keywords) != {"rounding_mode"}:
        raise Unfit(f"{operation} with {', '.join(keywords)}")
    if operation in _COMPARISONS:
        a, b = (operand.to(torch.int64) for operand in operands)
        return f"{a} {_COMPARISONS[operation]} {b}"
    if operation in _LOGICAL:
        return _LOGICAL[operation](*(operand.to(torch.bool) for operand in operands))
    if dtype not in _ARITHMETIC and operation not in ("same", "cast", "where", "minimum", "maximum"):
        raise Unfit(f"{operation} in {dtype}")
    if operation == "clamp":
        return _clamp(dtype, operands, keywords)
    if operation == "where":
        return f"tl.where({operands[0].to(torch.bool)}, {operands[1].to(dtype)}, {operands[2].to(dtype)})"
    if operation == "cast":
        return operands[0].to(dtype)
    form = (_OF_BOOLEANS if dtype == torch.bool else _OF_NUMBERS).get(operation)
    if form is None:
        raise Unfit(f"no expression for {operation} in {dtype}")
    return form(*(operand.to(dtype) for operand in operands))


def _clamp(dtype: torch.dtype, operands: list[Text], keywords: dict[str, Text]) -> str:
    limits = {"min": None, "max": None, **dict(zip(("min", "max"), operands[1:], strict=False)), **keywords}
    value = operands[0].to(dtype)
    for name, function in (("min", "maximum"), ("max", "minimum")):
        limit = limits[name]
        if limit is not None:
            value = f"tl.{function}({value}, {limit.to(dtype)})"
    return value


def _floored(a: str, b: str) -> str:
    """Division that rounds down; the machine's rounds to zero."""
    return f"floor_divide({a}, {b})"


_LOGICAL: dict[str, Callable[..., str]] = {
    "logical_and": lambda a, b: f"{a} & {b}",
    "logical_or": lambda a, b: f"{a} | {b}",
    "logical_xor": lambda a, b: f"{a} ^ {b}",
    "logical_not": lambda a: f"{a} == 0",
}
_OF_BOOLEANS: dict[str, Callable[..., str]] = {
    "and": lambda a, b: f"{a} & {b}",
    "mul": lambda a, b: f"{a} & {b}",
    "or": lambda a, b: f"{a} | {b}",
    "add": lambda a, b: f"{a} | {b}",
    "xor": lambda a, b: f"{a} ^ {b}",
    "not": lambda a: f"{a} == 0",
    "same": lambda a: a,
}
_OF_NUMBERS: dict[str, Callable[..., str]] = {
    "add": lambda a, b: f"{a} + {b}",
    "sub": lambda a, b: f"{a} - {b}",
    "mul": lambda a, b: f"{a} * {b}",
    "square": lambda a: f"{a} * {a}",
    "neg": lambda a: f"-{a}",
    "abs": lambda a: f"tl.abs({a})",
    "sign": lambda a: f"({a} > 0).to({a}.dtype) - ({a} < 0).to({a}.dtype)",
    "floor_divide": _floored,
    "remainder": lambda a, b: f"{a} - {_floored(a, b)} * {b}",
    "truncate_divide": lambda a, b: f"{a} // {b}",
    "fmod": lambda a, b: f"{a} - {a} // {b} * {b}",
    "minimum": lambda a, b: f"tl.minimum({a}, {b})",
    "maximum": lambda a, b: f"tl.maximum({a}, {b})",
    "clamp_min": lambda a, b: f"tl.maximum({a}, {b})",
    "clamp_max": lambda a, b: f"tl.minimum({a}, {b})",
    "relu": lambda a: f"tl.maximum({a}, 0)",
    "and": lambda a, b: f"{a} & {b}",
    "or": lambda a, b: f"{a} | {b}",
    "xor": lambda a, b: f"{a} ^ {b}",
    "not": lambda a: f"~{a}",
    "shift_left": lambda a, b: f"shift_left({a}, {b})",
    "shift_right": lambda a, b: f"shift_right({a}, {b})",
    "floor": lambda a: a,
    "ceil": lambda a: a,
    "trunc": lambda a: a,
    "round": lambda a: a,
    "same": lambda a: a,
}
