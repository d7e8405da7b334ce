"""Arithmetic on intervals: the smallest and largest value of an expression on every tile.

Floats are computed by torch's own operation in the dtype torch uses; the operations here are exactly rounded, hence
monotone, hence the ends of the result bound it. Integers are computed in int64 and given up where torch's dtype could
overflow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor

from attn_mods.tiles.joint import Joint, Operand, arithmetic, intervals_in, joint
from attn_mods.tiles.values import (
    UNKNOWN_NUMBER,
    Bounds,
    Flag,
    Interval,
    Truth,
    Unknown,
    Value,
    as_number,
    as_truth,
    both,
    either,
    fits,
)


def result(
    call: Joint, low: Tensor, high: Tensor, bounds: Bounds | None, attained: Flag = False, connected: Flag = False
) -> Value:
    """An interval in the dtype of the operation at hand, or unknown where an integer could overflow it."""
    dtype = call.node.dtype
    if not dtype.is_floating_point:
        if bounds is None or not fits(bounds, dtype):
            return UNKNOWN_NUMBER
        return Interval(low, high, dtype, bounds, attained, connected)
    undefined = torch.isnan(low) | torch.isnan(high)
    low, high = (end.masked_fill(undefined, float("nan")) for end in (low, high))
    return Interval(low, high, dtype, None, both(attained, ~undefined))


def finite(a: Interval) -> Interval:
    """A float interval with infinite ends made unknown: the infinities inside could meet to NaN."""
    if not a.dtype.is_floating_point:
        return a
    finite = torch.isfinite(a.low) & torch.isfinite(a.high)
    low, high = (end.masked_fill(~finite, float("nan")) for end in (a.low, a.high))
    return Interval(low, high, a.dtype, None, both(a.attained, finite))


def corner_bounds(function: Callable[[int, int], int], a: Interval, b: Interval) -> Bounds | None:
    """Python bounds of a function of two integers that takes its ends at ends of the operands."""
    if a.bounds is None or b.bounds is None:
        return None
    corners = [function(x, y) for x in a.bounds for y in b.bounds]
    return (min(corners), max(corners))


def corners(function: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval) -> tuple[Tensor, Tensor]:
    """Least and greatest of a function of two intervals that is monotone in each for every value of the other."""
    if b.low is b.high:
        ends = (function(a.low, b.low), function(a.high, b.low))
        return torch.minimum(*ends), torch.maximum(*ends)
    values = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low = torch.minimum(torch.minimum(values[0], values[1]), torch.minimum(values[2], values[3]))
    high = torch.maximum(torch.maximum(values[0], values[1]), torch.maximum(values[2], values[3]))
    return low, high


@arithmetic("add")
def add(call: Joint, a: Interval, b: Interval) -> Value:
    """`a + b`."""
    a, b = finite(a), finite(b)
    bounds = corner_bounds(operator.add, a, b)
    connected = call.together(a.connected, b.connected)
    return result(call, a.low + b.low, a.high + b.high, bounds, call.together(a.attained, b.attained), connected)


@arithmetic("sub")
def subtract(call: Joint, a: Interval, b: Interval) -> Value:
    """`a - b`."""
    a, b = finite(a), finite(b)
    bounds = corner_bounds(operator.sub, a, b)
    connected = call.together(a.connected, b.connected)
    return result(call, a.low - b.high, a.high - b.low, bounds, call.together(a.attained, b.attained), connected)


@arithmetic("mul")
def multiply(call: Joint, a: Interval, b: Interval) -> Value:
    """`a * b`."""
    a, b = finite(a), finite(b)
    if a.low is a.high:
        a, b = b, a
    low, high = corners(operator.mul, a, b)
    return result(call, low, high, corner_bounds(operator.mul, a, b), call.together(a.attained, b.attained))


@arithmetic("neg")
def negate(call: Joint, a: Interval) -> Value:
    """`-a`."""
    bounds = a.bounds and (-a.bounds[1], -a.bounds[0])
    return result(call, -a.high, -a.low, bounds, a.attained, a.connected)


@joint("same")
def same(call: Joint, a: Operand) -> Value | None:
    """`+a` and copies."""
    return a if isinstance(a, (Interval, Truth)) else None


@arithmetic("abs")
def absolute(call: Joint, a: Interval) -> Value:
    """`|a|`; where a crosses zero, zero is reached for certain only if every integer between is."""
    low = torch.maximum(a.low, -a.high).clamp(min=0)
    high = torch.maximum(-a.low, a.high)
    bounds = a.bounds and (0, max(abs(a.bounds[0]), abs(a.bounds[1])))
    one_sided = (a.low >= 0) | (a.high <= 0)
    return result(call, low, high, bounds, both(a.attained, either(a.connected, one_sided)), a.connected)


@arithmetic("square")
def square(call: Joint, a: Interval) -> Value:
    """`a ** 2`."""
    magnitude = absolute(call, finite(a))
    if isinstance(magnitude, Unknown) or not isinstance(magnitude, Interval):
        return UNKNOWN_NUMBER
    bounds = magnitude.bounds and (magnitude.bounds[0] ** 2, magnitude.bounds[1] ** 2)
    return result(call, magnitude.low * magnitude.low, magnitude.high * magnitude.high, bounds, magnitude.attained)


@joint("pow")
def power(call: Joint, a: Operand, exponent: Operand) -> Value | None:
    """`a ** 2`; other powers are unknown."""
    if not isinstance(exponent, int) or exponent != 2:
        return None
    intervals = intervals_in(call, (a,), call.node.dtype)
    return square(call, *intervals) if intervals is not None else None


@arithmetic("minimum", "clamp_max")
def minimum(call: Joint, a: Interval, b: Interval) -> Value:
    """The smaller of two."""
    attained, connected = call.together(a.attained, b.attained), call.together(a.connected, b.connected)
    return result(
        call, torch.minimum(a.low, b.low), torch.minimum(a.high, b.high), corner_bounds(min, a, b), attained, connected
    )


@arithmetic("maximum", "clamp_min")
def maximum(call: Joint, a: Interval, b: Interval) -> Value:
    """The larger of two."""
    attained, connected = call.together(a.attained, b.attained), call.together(a.connected, b.connected)
    return result(
        call, torch.maximum(a.low, b.low), torch.maximum(a.high, b.high), corner_bounds(max, a, b), attained, connected
    )


@joint("clamp", keywords=("min", "max"))
def clamp(call: Joint, a: Operand, min: Operand = None, max: Operand = None) -> Value | None:
    """`a.clamp(min, max)`; the maximum wins, as in torch."""
    value: Value | None = a
    for limit, bounded in ((min, maximum), (max, minimum)):
        if limit is not None and value is not None:
            intervals = intervals_in(call, (value, limit), call.node.dtype)
            value = bounded(call, *intervals) if intervals is not None else None
    return value


@arithmetic("where")
def where(call: Joint, condition: Interval, a: Interval, b: Interval) -> Value:
    """`torch.where(condition, a, b)` of numbers."""
    yes, no = condition.low > 0, condition.high == 0
    low = torch.where(yes, a.low, torch.where(no, b.low, torch.minimum(a.low, b.low)))
    high = torch.where(yes, a.high, torch.where(no, b.high, torch.maximum(a.high, b.high)))
    bounds = None if a.bounds is None or b.bounds is None else _hull(a.bounds, b.bounds)
    attained = either(both(yes, a.attained), both(no, b.attained))
    connected = either(both(yes, a.connected), both(no, b.connected))
    return result(call, low, high, bounds, attained, connected)


def _hull(a: Bounds, b: Bounds) -> Bounds:
    return (min(a[0], b[0]), max(a[1], b[1]))


@joint("cast", keywords=("dtype",))
def cast(call: Joint, a: Operand, *_: Operand, **__: Operand) -> Value | None:
    """A change of dtype that no value is changed by, or the monotone rounding to a float."""
    dtype = call.node.dtype
    if not isinstance(a, (Interval, Truth)):
        return None
    if dtype == torch.bool:
        return as_truth(a)
    number = as_number(a)
    to_integer = number.dtype.is_floating_point and not dtype.is_floating_point
    if to_integer or dtype in (torch.float16, torch.bfloat16):
        return None
    if dtype.is_floating_point:
        return result(call, number.low.to(dtype), number.high.to(dtype), None, number.attained)
    return result(call, number.low, number.high, number.bounds, number.attained, number.connected)


@arithmetic("floor", "ceil", "trunc", "round", "relu")
def monotone(call: Joint, a: Interval) -> Value:
    """Operations that preserve order and never enlarge an integer."""
    bounds = a.bounds and (min(a.bounds[0], 0), max(a.bounds[1], 0))
    return result(call, call.node.function(a.low), call.node.function(a.high), bounds, a.attained, a.connected)


@arithmetic("sign")
def sign(call: Joint, a: Interval) -> Value | None:
    """The sign of an integer (that of NaN would be a number)."""
    if call.node.dtype.is_floating_point:
        return None
    return result(call, a.low.sign(), a.high.sign(), (-1, 1), a.attained, a.connected)


@arithmetic("sqrt")
def square_root(call: Joint, a: Interval) -> Value:
    """The square root, correctly rounded."""
    return result(call, a.low.sqrt(), a.high.sqrt(), None, a.attained)
