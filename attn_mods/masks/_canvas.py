"""Tokens on a canvas of one to three axes: sizes, coordinates, exact tile states of rules that factor by axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import isqrt, prod

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, States

Box = tuple[list[Tensor], list[Tensor]]
"""First coordinate and one past the last coordinate by axis, int64 [tiles] each."""

LONGEST_AXIS = 2048
"""Up to here a table of (query, key) coordinates of one axis is small."""


def sizes(name: str, field: str, value: object, axes: int | None, remedy: str) -> tuple[int, ...]:
    """The value, if it is a tuple of ints >= 1, one an axis; None as ``axes`` allows one to three."""
    if not isinstance(value, (tuple, list)):
        checks.fail(name, f"{field} must be a tuple of ints, one an axis", checks.describe(value), remedy, TypeError)
    if axes is None and not 1 <= len(value) <= 3:
        checks.fail(name, f"{field} must have one to three axes", value, remedy)
    if axes is not None and len(value) != axes:
        checks.fail(name, f"{field} must have {axes} axes as the canvas has", value, remedy)
    return tuple(checks.static_integer(name, field, size, 1, remedy) for size in value)


def check_total(name: str, total: int, q_end: int | None, kv_end: int | None, remedy: str) -> None:
    """Raise unless the keys are exactly the ``total`` tokens and every query is one of them."""
    if kv_end is not None and kv_end != total:
        checks.fail(name, f"its parameters describe {total} tokens, so the keys must end at {total}", kv_end, remedy)
    checks.queries_end(name, total, q_end, remedy, unit="token")


def coordinates(position: Tensor, canvas: Sequence[int]) -> tuple[Tensor, ...]:
    """The coordinates of positions in raster order, the last axis fastest."""
    inner = [prod(canvas[axis + 1 :]) for axis in range(len(canvas))]
    return tuple(
        position // below if axis == 0 else position // below % size
        for axis, (size, below) in enumerate(zip(canvas, inner, strict=True))
    )


def near_square(tokens: int) -> tuple[int, int]:
    """(height, width) of a canvas of exactly ``tokens`` tokens, height <= width, as square as it can be."""
    height = next(size for size in range(isqrt(tokens), 0, -1) if tokens % size == 0)
    return height, tokens // height


def outer_product(tables: Sequence[Tensor]) -> Tensor:
    """The mask of all tokens from what each axis shows: bool [n, n] by axis to bool [tokens, tokens]."""
    whole = tables[0]
    for table in tables[1:]:
        both = whole[:, None, :, None] & table[None, :, None, :]
        whole = both.reshape(whole.shape[0] * table.shape[0], whole.shape[1] * table.shape[1])
    return whole


def states_of_product(tables: Sequence[Tensor], grid: Grid) -> States:
    """Exact states where a pair is visible iff it is on every axis, from the number of visible pairs of each tile.

    An interval of raster positions is a few boxes, and the visible pairs between two boxes are a product over the axes.

    Args:
        tables: For each axis bool [n, n] on the grid's device: whether a query coordinate (row) sees a key coordinate.
        grid: Tiles of raster positions.
    """
    canvas = [table.shape[0] for table in tables]
    sums = [torch.nn.functional.pad(table.cumsum(0).cumsum(1), (1, 0, 1, 0)) for table in tables]
    q_tiles, kv_tiles = tile_intervals(grid)
    visible = torch.zeros(grid.rows, grid.columns, dtype=torch.int64, device=grid.device)
    kv_boxes = _filled_boxes(kv_tiles, canvas)
    for first, end in _filled_boxes(q_tiles, canvas):
        rows = [table[stop] - table[start] for table, start, stop in zip(sums, first, end, strict=True)]
        for kv_first, kv_end in kv_boxes:
            pairs = (
                row.index_select(1, stop) - row.index_select(1, start)
                for row, start, stop in zip(rows, kv_first, kv_end, strict=True)
            )
            visible += reduce(torch.mul, pairs)
    total = (q_tiles[1] - q_tiles[0])[:, None] * (kv_tiles[1] - kv_tiles[0])
    return states_of_counts(visible[None, None], total)


def states_of_counts(visible: Tensor, total: Tensor) -> States:
    """States from the number of visible pairs, integer [B|1, H|1, rows, columns], and of all pairs of each tile."""
    codes = torch.full_like(visible, MIXED, dtype=torch.uint8)
    return States(codes.masked_fill(visible == 0, EMPTY).masked_fill(visible == total, FULL))


def tile_intervals(grid: Grid) -> tuple[Tensor, Tensor]:
    """First position and one past the last of each query tile and of each key tile, int64 [2, tiles] each."""
    sides = []
    lengths = ((grid.q_len, grid.block_size[0], grid.q_offset), (grid.kv_len, grid.block_size[1], grid.kv_offset))
    for length, block, offset in lengths:
        first = torch.arange(0, length, block, device=grid.device)
        sides.append(torch.stack([first, (first + block).clamp(max=length)]) + offset)
    return sides[0], sides[1]


def _filled_boxes(tiles: Tensor, canvas: Sequence[int]) -> list[Box]:
    boxes = _boxes(tiles[0], tiles[1], canvas)
    return [(first, end) for first, end in boxes if bool((torch.stack(end) > torch.stack(first)).all(0).any())]


def _boxes(first: Tensor, end: Tensor, canvas: Sequence[int]) -> Iterator[Box]:
    """Boxes that together are the positions first .. end - 1: the whole rows, what is before them and what is after."""
    if len(canvas) == 1:
        yield [first], [end]
        return
    zero, inner = torch.zeros_like(first), prod(canvas[1:])
    head, tail = first // inner, end // inner
    whole_from = (first + inner - 1) // inner
    full = [zero + size for size in canvas[1:]]
    yield [whole_from, *(zero for _ in full)], [torch.maximum(tail, whole_from), *full]
    head_from = first - head * inner
    head_end = torch.where(head_from > 0, (end - head * inner).clamp(max=inner), zero)
    for starts, stops in _boxes(head_from, head_end, canvas[1:]):
        yield [head, *starts], [head + 1, *stops]
    tail_end = torch.where(tail >= whole_from, end - tail * inner, zero)
    for starts, stops in _boxes(zero, tail_end, canvas[1:]):
        yield [tail, *starts], [(tail + 1).clamp(max=canvas[0]), *stops]
