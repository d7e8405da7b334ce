"""Lookups in captured tables at indices that move with q_idx and kv_idx, and membership in sorted tables.

An index of one variable never comes here (its values are gathered position by position). Here the indices are
intervals, and the answer is the least and greatest entry of the table in the box they span, or for booleans the number
of true entries in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.tiles.interval import result
from attn_mods.tiles.joint import Joint, Operand, intervals_in, joint
from attn_mods.tiles.pointwise import look_up as gather
from attn_mods.tiles.values import Interval, Truth, Value, both, exactly, integer_bounds


@dataclass(frozen=True, slots=True)
class _Index:
    """The entries along one axis of a table that a tile may read: low..high, never outside the table."""

    low: Tensor
    high: Tensor
    every: bool | Tensor

    @property
    def moves(self) -> bool:
        return self.low is not self.high


@joint("lookup")
def look_up(call: Joint, table: Tensor, *indices: Operand) -> Value | None:
    """`table[i, j, ...]` with one index an axis."""
    if table.dim() != len(indices) or not table.numel() or table.dtype in (torch.float16, torch.bfloat16):
        return None
    boxes = [_index(call, index, size) for index, size in zip(indices, table.shape, strict=True)]
    if any(box is None for box in boxes):
        return None
    ranges = [box for box in boxes if box is not None]
    moving = [axis for axis, box in enumerate(ranges) if box.moves]
    part = _Part.of(table, indices, ranges)
    if table.dtype == torch.bool:
        return _any_and_all(call, part, moving)
    return _extremes(call, part, moving[0]) if len(moving) == 1 else None


@dataclass(frozen=True, slots=True)
class _Part:
    """What an analysis reads of a table: of an axis that a number is the index of that entry alone.

    Attributes:
        key: The same for the same part of the same table.
        table: A view of the table.
        indices: Of each axis of the view.
        whole: The table, which its identity is kept by.
    """

    key: tuple[int | None, ...]
    table: Tensor
    indices: list[_Index]
    whole: Tensor

    @classmethod
    def of(cls, table: Tensor, indices: Sequence[Operand], ranges: Sequence[_Index]) -> _Part:
        """The part of a table that these indices read."""
        view = table
        left: list[_Index] = []
        fixed: list[int | None] = [id(table)]
        for axis, (index, box) in enumerate(zip(indices, ranges, strict=True)):
            fixed.append(index if isinstance(index, int) else None)
            if isinstance(index, int):
                view = view.narrow(axis, index % table.shape[axis], 1)
                first = torch.zeros_like(box.low)
                box = _Index(first, first, True)
            left.append(box)
        return cls(tuple(fixed), view, left, table)


def _index(call: Joint, index: Operand, size: int) -> _Index | None:
    """An index with negative values counted from the end, and everything clamped to the table.

    An index outside the table raises where torch evaluates it, so no claim is owed for it.

    Raises:
        IndexError: The index is a number outside the table, at every position then. The scan raises torch's own.
    """
    if isinstance(index, (int, Tensor)):
        is_at_hand = isinstance(index, int) or index.device.type == "cpu"
        if is_at_hand and not -size <= int(index) < size:
            raise IndexError(f"index {int(index)} is out of bounds for an axis of {size}")
        value = torch.as_tensor(index, device=call.device).reshape(1, 1, 1, 1)
        interval = exactly(value, None)
    else:
        interval = index
    if not isinstance(interval, Interval) or interval.dtype.is_floating_point:
        return None
    low, high, every = interval.low, interval.high, interval.connected
    if low is high:
        position = torch.where(low < 0, low + size, low).clamp(0, size - 1)
        return _Index(position, position, True)
    crosses = (low < 0) & (high >= 0)
    wrapped_low = torch.where(high < 0, low + size, torch.where(crosses, 0, low)).clamp(0, size - 1)
    wrapped_high = torch.where(high < 0, high + size, torch.where(crosses, size - 1, high)).clamp(0, size - 1)
    inside = ~crosses & (low >= -size) & (high < size)
    return _Index(wrapped_low, wrapped_high, both(every, inside))


def _every_pair_is_read(call: Joint, indices: Sequence[_Index], moving: Sequence[int]) -> bool | Tensor:
    """Where the tile reads every entry of the box: each index takes every integer, independently of the others."""
    everything: bool | Tensor = len(moving) <= 1 or call.independent
    for axis in moving:
        everything = both(everything, indices[axis].every)
    return everything


def _any_and_all(call: Joint, part: _Part, moving: Sequence[int]) -> Value | None:
    """Truth of a boolean table over a box of at most two moving indices, by a summed-area table."""
    table, indices = part.table, part.indices
    if len(moving) > 2 or table.numel() > call.derived.most:
        return None
    sums = call.derived.table(("area", part.key, *moving), lambda: _summed_area(table, moving), part.whole)
    count: Tensor | int = 0
    for ends in itertools.product((True, False), repeat=len(moving)):
        corner = [index.low for index in indices]
        for axis, upper in zip(moving, ends, strict=True):
            corner[axis] = indices[axis].high + 1 if upper else indices[axis].low
        sign = -1 if ends.count(False) % 2 else 1
        count = count + sign * gather(sums, *corner)
    area: Tensor | int = 1
    for axis in moving:
        area = area * (indices[axis].high - indices[axis].low + 1)
    every, some = torch.as_tensor(count == area), torch.as_tensor(count > 0)
    return Truth(every, some, both(_every_pair_is_read(call, indices, moving), some & ~every))


def _summed_area(table: Tensor, axes: Sequence[int]) -> Tensor:
    """Number of true entries before each position along the axes; one longer than the table along each."""
    sums = table.to(torch.int32)
    for axis in axes:
        sums = torch.cat([torch.zeros_like(sums.narrow(axis, 0, 1)), sums.cumsum(axis, dtype=torch.int32)], axis)
    return sums


def _extremes(call: Joint, part: _Part, axis: int) -> Value | None:
    """Least and greatest entry between two ends along one axis: two overlapping runs of a power of two cover them."""
    table, indices = part.table, part.indices
    if table.numel() * table.shape[axis].bit_length() > call.derived.most:
        return None

    def made() -> tuple[Tensor, Tensor]:
        return _runs(table, axis, torch.minimum), _runs(table, axis, torch.maximum)

    least, greatest = call.derived.table(("runs", part.key, axis), made, part.whole)
    low, high = indices[axis].low, indices[axis].high
    level = torch.frexp((high - low + 1).double()).exponent.long() - 1
    length = torch.ones_like(level) << level

    def between(runs: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        first, second = ([index.low for index in indices] for _ in range(2))
        first[axis], second[axis] = low, high - length + 1
        return combine(gather(runs, level, *first), gather(runs, level, *second))

    smallest, largest = between(least, torch.minimum), between(greatest, torch.maximum)
    attained = both(indices[axis].every, call.independent)
    if table.dtype.is_floating_point:
        return result(call, smallest, largest, None, attained)
    bounds = (int(table.min()), int(table.max()))
    return result(call, smallest.long(), largest.long(), bounds, attained)


def _runs(table: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[level, *table.shape]: the least (greatest) of the 2 ** level entries from each position on, cut at the end."""
    levels, length, size = [table], 1, table.shape[axis]
    while 2 * length <= size:
        last = levels[-1]
        joined = combine(last.narrow(axis, 0, size - length), last.narrow(axis, length, size - length))
        levels.append(torch.cat([joined, last.narrow(axis, size - length, length)], axis))
        length *= 2
    return torch.stack(levels)


@joint("isin")
def is_in(call: Joint, element: Operand, members: Operand) -> Value | None:
    """`torch.isin(x, members)` of integers: how many of the integers a tile may take are members."""
    if not isinstance(members, Tensor) or not members.numel() or integer_bounds(members) is None:
        return None
    intervals = intervals_in(call, (element,), torch.int64)
    if intervals is None:
        return None
    ordered = call.derived.table(("members", id(members)), lambda: torch.unique(members.long()), members)
    number = intervals[0]
    count = torch.searchsorted(ordered, number.high, right=True) - torch.searchsorted(ordered, number.low)
    every, some = count == number.high - number.low + 1, count > 0
    return Truth(every, some, both(number.connected, some & ~every))


@joint("bucketize", keywords=("right",))
def bucketize(call: Joint, element: Operand, boundaries: Operand, right: bool = False) -> Value | None:
    """`torch.bucketize(x, boundaries)`, which never decreases with x."""
    return _searched(call, element, boundaries, right)


@joint("searchsorted", keywords=("right",))
def searchsorted(call: Joint, boundaries: Operand, element: Operand, right: bool = False) -> Value | None:
    """`torch.searchsorted(boundaries, x)`, which never decreases with x."""
    return _searched(call, element, boundaries, right)


def _searched(call: Joint, element: Operand, boundaries: Operand, right: bool) -> Value | None:
    if not isinstance(boundaries, Tensor) or boundaries.dim() != 1 or boundaries.dtype != torch.int64:
        return None
    intervals = intervals_in(call, (element,), torch.int64)
    if intervals is None:
        return None
    number = intervals[0]
    low, high = (torch.searchsorted(boundaries, end.contiguous(), right=right) for end in (number.low, number.high))
    return result(call, low, high, (0, boundaries.numel()), number.attained)
