"""The joint tier: one operation on the values of whole tiles, looked up by name in a table of small functions.

The modules `interval`, `division`, `comparison`, `boolean`, `lookup` and `trailing_axes` fill the table. What it does
not hold is unknown, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles.graph import Node
from attn_mods.tiles.grid import POSITIONS
from attn_mods.tiles.values import (
    UNKNOWN_NUMBER,
    Flag,
    Interval,
    Truth,
    Unknown,
    Value,
    as_number,
    both,
    exactly,
    fits,
    integer_bounds,
    unknown_truth,
)

LARGEST = 1 << 26
"""Elements that a derived table may have, however many pairs there are."""

Operand = Any
"""An argument of an operation: a Value in place of a node, else a captured tensor, number or what else torch takes."""

JointOperation = Callable[..., Value | None]


@dataclass(frozen=True, slots=True)
class Derived:
    """Tables derived from captured ones, kept for the whole analysis.

    Attributes:
        most: Elements one may have: to make a larger one would take longer than to evaluate the rule at every pair.
        held: The tables, by what they are of.
    """

    most: int = LARGEST
    held: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def for_pairs(cls, pairs: int) -> Derived:
        """None yet, for so many pairs of positions."""
        return cls(min(LARGEST, max(1 << 16, 4 * pairs)))

    def table(self, key: Hashable, make: Callable[[], Any], *of: Tensor) -> Any:
        """The one of a key, which may hold the identity of the tensors it is made of."""
        if key not in self.held:
            self.held[key] = make(), of
        return self.held[key][0]


@dataclass(frozen=True, slots=True)
class Joint:
    """The operation at hand.

    Attributes:
        node: What is computed.
        independent: No two operands depend on one position variable, so any two of their values on a tile meet.
        device: Where the tiles are.
        derived: Tables derived from captured ones.
    """

    node: Node
    independent: bool
    device: torch.device
    derived: Derived

    def together(self, a: Flag, b: Flag) -> Flag:
        """Where two facts about values of two operands hold at one position."""
        return both(a, b) if self.independent else False


_OPERATIONS: dict[str, list[tuple[JointOperation, frozenset[str]]]] = {}


def joint(*names: str, keywords: Sequence[str] = ()) -> Callable[[JointOperation], JointOperation]:
    """Register an operation on operands as they are.

    Args:
        names: Canonical operation names. Of several operations of one name the first that knows the value gives it.
        keywords: Keyword arguments it understands; a call with others is unknown.
    """

    def register(operation: JointOperation) -> JointOperation:
        for name in names:
            _OPERATIONS.setdefault(name, []).append((operation, frozenset(keywords)))
        return operation

    return register


def arithmetic(*names: str, keywords: Sequence[str] = ()) -> Callable[[JointOperation], JointOperation]:
    """Register an operation on intervals in the dtype of its result; unknown and unsafe operands never reach it."""

    def register(operation: JointOperation) -> JointOperation:
        @joint(*names, keywords=keywords)
        def on_intervals(call: Joint, *operands: Operand, **_: Operand) -> Value | None:
            if call.node.dtype == torch.bool:
                return None
            intervals = intervals_in(call, operands, call.node.dtype)
            return operation(call, *intervals) if intervals is not None else None

        return operation

    return register


def evaluate_joint(node: Node, value_of: Callable[[Node], Value], device: torch.device, derived: Derived) -> Value:
    """The value of a node that depends on q_idx and kv_idx, given those of its operands."""
    call = Joint(node, _are_independent(node), device, derived)
    arguments, keywords = _with_values(node.arguments, value_of), _with_values(node.keywords, value_of)
    for operation, understood in _OPERATIONS.get(node.operation, ()):
        outcome = operation(call, *arguments, **keywords) if keywords.keys() <= understood else None
        if outcome is not None and not isinstance(outcome, Unknown):
            return outcome
    return unknown_truth(node.shape, device) if node.dtype == torch.bool else UNKNOWN_NUMBER


def _are_independent(node: Node) -> bool:
    seen = 0
    for operand in node.operands():
        if operand.dependence & POSITIONS & seen:
            return False
        seen |= operand.dependence & POSITIONS
    return True


def _with_values(value: Any, value_of: Callable[[Node], Value]) -> Any:
    if isinstance(value, Node):
        return value_of(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_with_values(item, value_of) for item in value)
    if isinstance(value, dict):
        return {key: _with_values(item, value_of) for key, item in value.items()}
    return value


def intervals_in(call: Joint, operands: Sequence[Operand], dtype: torch.dtype | None) -> list[Interval] | None:
    """Operands as intervals of one dtype with equally many axes, or None where torch's result is not certain.

    Args:
        call: The operation at hand.
        operands: Values, captured tensors and numbers.
        dtype: What torch computes in; any integer dtype stands for all of them.
    """
    if dtype is None or dtype in (torch.float16, torch.bfloat16) or not numbers_fit(call, operands):
        return None
    intervals = []
    for operand in operands:
        interval = _interval(operand, dtype, call.device)
        if interval is None:
            return None
        intervals.append(interval)
    axes = max(interval.low.dim() for interval in intervals)
    return [with_axes(interval, axes) for interval in intervals]


def _interval(operand: Operand, dtype: torch.dtype, device: torch.device) -> Interval | None:
    if isinstance(operand, (bool, int, float)):
        if dtype.is_floating_point:
            value = exactly(torch.full((1, 1, 1, 1), float(operand), dtype=dtype, device=device), None)
        elif isinstance(operand, float) or not fits((int(operand), int(operand)), torch.int64):
            return None
        else:
            value = exactly(torch.full((1, 1, 1, 1), int(operand), device=device), (int(operand), int(operand)))
    elif isinstance(operand, Tensor):
        value = exactly(operand.reshape((1,) * 4 + operand.shape), integer_bounds(operand))
    elif isinstance(operand, (Interval, Truth)):
        value = operand
    else:
        return None
    number = as_number(value)
    if dtype.is_floating_point:
        return _as_float(number, dtype)
    return None if number.dtype.is_floating_point or number.bounds is None else number


def _as_float(number: Interval, dtype: torch.dtype) -> Interval:
    if number.dtype == dtype:
        return number
    if number.low is number.high:
        low = high = number.low.to(dtype)
    else:
        low, high = number.low.to(dtype), number.high.to(dtype)
    return Interval(low, high, dtype, None, number.attained)


def numbers_fit(call: Joint, operands: Sequence[Operand]) -> bool:
    """Whether no Python int or captured 0-d tensor wraps when torch casts it to the dtype of the other operands."""
    dtypes = [operand.dtype for operand in call.node.operands() if operand.dtype != torch.bool]
    integers = [dtype for dtype in dtypes if not dtype.is_floating_point]
    if not integers or all(dtype == torch.int64 for dtype in integers):
        return True
    narrowest = min(integers, key=lambda dtype: torch.iinfo(dtype).max)
    fixed = [integer_bounds(operand) for operand in operands if isinstance(operand, (int, Tensor))]
    return all(fits(bounds, narrowest) for bounds in fixed if bounds is not None)


def with_axes(value: Interval, axes: int) -> Interval:
    """An interval with trailing axes of extent 1 put in, as broadcasting lines them up."""
    if value.low.dim() == axes:
        return value
    low = _stretch(value.low, axes)
    high = low if value.high is value.low else _stretch(value.high, axes)
    return replace(
        value, low=low, high=high, attained=stretch(value.attained, axes), connected=stretch(value.connected, axes)
    )


def stretch(flag: Flag, axes: int) -> Flag:
    """A flag with trailing axes of extent 1 put in."""
    return _stretch(flag, axes) if isinstance(flag, Tensor) else flag


def _stretch(tensor: Tensor, axes: int) -> Tensor:
    missing = axes - tensor.dim()
    return tensor.reshape(*tensor.shape[:4], *(1,) * missing, *tensor.shape[4:]) if missing else tensor
