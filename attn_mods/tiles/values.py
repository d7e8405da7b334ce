"""What a value is on a whole tile: an interval of numbers, or a truth; and what is known of its ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Flag = bool | Tensor
"""A fact that may hold: known for all tiles (bool) or per tile (bool tensor)."""

Bounds = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Interval:
    """A number on each tile lies in [low, high].

    Attributes:
        low: [B|1, H|1, rows|1, columns|1, *event] smallest value, or less; int64 for integers of any dtype.
        high: Largest value, or more, likewise. Both NaN where a float is not known to be an ordinary number.
        dtype: What torch computes the value in.
        bounds: Python ints that no value of an integer leaves; None for floats.
        attained: Each of low and high is the value at some position of the tile (for every b and h of it).
        connected: Every integer in [low, high] is the value at some position of the tile; implies `attained`.
    """

    low: Tensor
    high: Tensor
    dtype: torch.dtype
    bounds: Bounds | None
    attained: Flag = False
    connected: Flag = False


@dataclass(frozen=True, eq=False, slots=True)
class Truth:
    """A boolean on each tile.

    Attributes:
        every: [B|1, H|1, rows|1, columns|1, *event] True only if it is true at every position of the tile.
        some: False only if it is false at every position.
        mixed: True only if it is true at some position and false at some other.
    """

    every: Tensor
    some: Tensor
    mixed: Flag = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """A number of which nothing is known."""


UNKNOWN_NUMBER = Unknown()
Value = Interval | Truth | Unknown


def both(a: Flag, b: Flag) -> Flag:
    """Where both facts hold."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def either(a: Flag, b: Flag) -> Flag:
    """Where at least one of two facts holds."""
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return a | b


def unknown_truth(shape: tuple[int, ...], device: torch.device | str) -> Truth:
    """A boolean of which nothing is known, with the given trailing axes."""
    every = torch.zeros((1, 1, 1, 1, *shape), dtype=torch.bool, device=device)
    return Truth(every, ~every)


def exactly(value: Tensor, bounds: Bounds | None) -> Interval | Truth:
    """A value that is the same at every position of a tile."""
    if value.dtype == torch.bool:
        return Truth(value, value)
    if value.dtype.is_floating_point:
        return Interval(value, value, value.dtype, None, value == value)
    ends = value.long()
    return Interval(ends, ends, value.dtype, bounds, True, True)


def integer_bounds(value: bool | int | float | Tensor) -> Bounds | None:
    """Smallest and largest number in a captured integer; reads a tensor (one synchronisation)."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bool or value.dtype.is_floating_point or not value.numel():
            return None
        return (int(value.min()), int(value.max()))
    return (value, value) if isinstance(value, int) else None


def as_number(value: Interval | Truth) -> Interval:
    """A boolean as the integer 0 or 1 it is in arithmetic."""
    if isinstance(value, Interval):
        return value
    known = either(value.mixed, value.every | ~value.some)
    return Interval(value.every.long(), value.some.long(), torch.bool, (0, 1), known, known)


def as_truth(value: Interval | Truth) -> Truth:
    """Where a number is not zero (NaN is not)."""
    if isinstance(value, Truth):
        return value
    every = (value.low > 0) | (value.high < 0)
    some = ~((value.low == 0) & (value.high == 0))
    crosses_zero = (value.low <= 0) & (value.high >= 0)
    touches_zero = both(value.attained, (value.low == 0) | (value.high == 0))
    mixed = both(either(both(value.connected, crosses_zero), touches_zero), some)
    return Truth(every, some, mixed)


def fits(bounds: Bounds, dtype: torch.dtype) -> bool:
    """Whether every integer within the bounds is one of an integer dtype."""
    if dtype == torch.bool:
        return bounds[0] >= 0 and bounds[1] <= 1
    limits = torch.iinfo(dtype)
    return limits.min <= bounds[0] and bounds[1] <= limits.max
