"""Comparisons of intervals: where they hold everywhere, somewhere, or certainly only somewhere.

Every test is written as the negation of one that must succeed, so that NaN ends leave the tile unknown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods.tiles.boolean import exactly_one_true, negate, truths_in
from attn_mods.tiles.joint import Joint, Operand, intervals_in, joint
from attn_mods.tiles.values import Interval, Truth, Value, both


def common_dtype(call: Joint, operands: tuple[Operand, ...]) -> torch.dtype | None:
    """The dtype torch compares in (int64 for all integers), or None if it is not certain."""
    nodes = {operand.dtype for operand in call.node.operands()}
    captured = {operand.dtype for operand in operands if isinstance(operand, Tensor)}
    floats = {dtype for dtype in nodes | captured if dtype.is_floating_point}
    if not floats:
        return torch.get_default_dtype() if any(isinstance(operand, float) for operand in operands) else torch.int64
    if len(floats) == 1:
        return floats.pop()
    return torch.promote_types(*floats) if not captured and len(floats) == 2 else None


def _compared(call: Joint, a: Operand, b: Operand) -> list[Interval] | None:
    return intervals_in(call, (a, b), common_dtype(call, (a, b)))


@joint("lt", "gt")
def less_than(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a < b`, and `a > b` as `b < a`."""
    intervals = _compared(call, a, b)
    if intervals is None:
        return None
    x, y = intervals if call.node.operation == "lt" else reversed(intervals)
    every, some = x.high < y.low, ~(x.low >= y.high)
    return Truth(every, some, _mixed(call, x, y, every, some))


@joint("le", "ge")
def less_or_equal(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a <= b`, and `a >= b` as `b <= a`."""
    intervals = _compared(call, a, b)
    if intervals is None:
        return None
    x, y = intervals if call.node.operation == "le" else reversed(intervals)
    every, some = x.high <= y.low, ~(x.low > y.high)
    return Truth(every, some, _mixed(call, x, y, every, some))


def _mixed(call: Joint, x: Interval, y: Interval, every: Tensor, some: Tensor) -> bool | Tensor:
    """An order that holds for some ends and fails for others is mixed where the ends occur together."""
    attained = call.together(x.attained, y.attained)
    return both(attained, some & ~every) if attained is not False else False


@joint("eq", "ne")
def equal(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a == b`, and `a != b` as its negation."""
    outcome = _equal_truths(call, a, b)
    if outcome is None:
        intervals = _compared(call, a, b)
        if intervals is None:
            return None
        outcome = _equal_intervals(call, *intervals)
    return negate(outcome) if call.node.operation == "ne" else outcome


def _equal_truths(call: Joint, a: Operand, b: Operand) -> Truth | None:
    if truths_in(call, a, b) is None:
        return None
    differ = exactly_one_true(call, a, b)
    return negate(differ) if isinstance(differ, Truth) else None


def _equal_intervals(call: Joint, x: Interval, y: Interval) -> Truth:
    every = (x.high == y.low) & (x.low == y.high)
    some = ~((x.high < y.low) | (x.low > y.high))
    attained = call.together(x.attained, y.attained)
    if attained is False:
        return Truth(every, some)
    # Attained ends alone prove no equal pair: they must coincide, or one lie where the other side takes every integer.
    hit = (x.low == y.low) | (x.high == y.high) | (x.low == y.high) | (x.high == y.low)
    for inner, outer in ((x, y), (y, x)):
        if outer.connected is not False:
            within = _lies_in(inner.low, outer) | _lies_in(inner.high, outer)
            hit = hit | (within & outer.connected)
    return Truth(every, some, both(attained, hit & ~every))


def _lies_in(end: Tensor, outer: Interval) -> Tensor:
    return (end >= outer.low) & (end <= outer.high)
