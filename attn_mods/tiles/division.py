"""Quotients and remainders of intervals: floored, truncated, exact, and by powers of two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attn_mods.tiles.interval import corners, finite, result
from attn_mods.tiles.joint import Joint, arithmetic
from attn_mods.tiles.values import Interval, Value, both, either


def _floor(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _truncate(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _is_fixed(b: Interval) -> bool:
    """Whether a value is one and the same on each tile."""
    return b.low is b.high


def _has_a_sign(b: Interval) -> bool:
    return b.bounds is not None and (b.bounds[0] > 0 or b.bounds[1] < 0)


def _quotient(call: Joint, a: Interval, b: Interval, divide: Callable[[Tensor, Tensor], Tensor]) -> Value | None:
    if call.node.dtype.is_floating_point or not _has_a_sign(b) or a.bounds is None:
        return None
    low, high = corners(divide, a, b)
    largest = max(abs(a.bounds[0]), abs(a.bounds[1]))
    connected = a.connected if _is_fixed(b) else False
    return result(call, low, high, (-largest, largest), call.together(a.attained, b.attained), connected)


@arithmetic("floor_divide", keywords=("rounding_mode",))
def floor_divide(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`a // b` of integers by a divisor of one sign; consecutive a give equal or consecutive quotients."""
    return _quotient(call, a, b, _floor)


@arithmetic("truncate_divide", keywords=("rounding_mode",))
def truncate_divide(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`torch.div(a, b, rounding_mode="trunc")` of integers by a divisor of one sign."""
    return _quotient(call, a, b, _truncate)


@arithmetic("remainder")
def remainder(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`a % b` of integers by a divisor of one sign, fixed on each tile; the result has the divisor's sign."""
    if call.node.dtype.is_floating_point or not _is_fixed(b) or not _has_a_sign(b) or b.bounds is None:
        return None
    divisor = b.low
    least, greatest = torch.where(divisor < 0, divisor + 1, 0), torch.where(divisor > 0, divisor - 1, 0)
    whole = _floor(a.low, divisor)
    one_period = whole == _floor(a.high, divisor)
    low = torch.where(one_period, a.low - whole * divisor, least)
    high = torch.where(one_period, a.high - whole * divisor, greatest)
    # Consecutive integers that cross a multiple of the divisor take both the last and the first remainder.
    attained = either(a.connected, both(a.attained, one_period))
    full_period = (a.high - a.low + 1 >= divisor.abs()) | one_period
    bounds = (min(b.bounds[0] + 1, 0), max(b.bounds[1] - 1, 0))
    return result(call, low, high, bounds, attained, both(a.connected, full_period))


@arithmetic("fmod")
def truncated_remainder(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`torch.fmod(a, b)` of integers by a divisor fixed on each tile; the result has the dividend's sign."""
    if call.node.dtype.is_floating_point or not _is_fixed(b) or not _has_a_sign(b) or b.bounds is None:
        return None
    divisor = b.low
    whole = _truncate(a.low, divisor)
    one_period = (whole == _truncate(a.high, divisor)) & ((a.low >= 0) | (a.high <= 0))
    greatest = divisor.abs() - 1
    low = torch.where(one_period, a.low - whole * divisor, torch.maximum(a.low, -greatest).clamp(max=0))
    high = torch.where(one_period, a.high - whole * divisor, torch.minimum(a.high, greatest).clamp(min=0))
    largest = max(abs(b.bounds[0]), abs(b.bounds[1])) - 1
    return result(call, low, high, (-largest, largest), both(a.attained, one_period))


@arithmetic("divide")
def divide(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`a / b` in floats, unknown on tiles where the divisor may be zero."""
    if not call.node.dtype.is_floating_point:
        return None
    a, b = finite(a), finite(b)
    low, high = corners(torch.true_divide, a, b)
    may_be_zero = (b.low <= 0) & (b.high >= 0)
    low, high = (end.masked_fill(may_be_zero, float("nan")) for end in (low, high))
    return result(call, low, high, None, call.together(a.attained, b.attained))


@arithmetic("shift_left", "shift_right")
def shift(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`a << n` and `a >> n` by a constant: multiplication and floored division by 2 ** n."""
    if call.node.dtype.is_floating_point or b.bounds is None or b.bounds[0] != b.bounds[1] or a.bounds is None:
        return None
    count = b.bounds[0]
    if not 0 <= count < torch.iinfo(call.node.dtype).bits - 1:
        return None
    if call.node.operation == "shift_left":
        bounds = (a.bounds[0] << count, a.bounds[1] << count)
        return result(call, a.low << count, a.high << count, bounds, a.attained, a.connected if count == 0 else False)
    bounds = (a.bounds[0] >> count, a.bounds[1] >> count)
    return result(call, a.low >> count, a.high >> count, bounds, a.attained, a.connected)


@arithmetic("and")
def low_bits(call: Joint, a: Interval, b: Interval) -> Value | None:
    """`a & (2 ** n - 1)` of integers, which is `a % 2 ** n`."""
    number, mask = (a, b) if _is_fixed(b) else (b, a)
    if mask.bounds is None or mask.bounds[0] != mask.bounds[1] or mask.bounds[0] < 0:
        return None
    if mask.bounds[0] & (mask.bounds[0] + 1):
        return None
    period = mask.low + 1
    return remainder(call, number, Interval(period, period, mask.dtype, (mask.bounds[0] + 1,) * 2, True, True))
