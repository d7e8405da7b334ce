"""The calculus itself: a recorded rule and a grid to the states of its tiles.

The leaves are evaluated once, O(Q + KV). The joint nodes are then evaluated on rectangles of tiles: in bands of rows
that bound the memory, or, where there are many tiles, first on tiles of many blocks and then only on the blocks of
those that are not decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.kernels.chunks import at_once

# The modules that fill the table of joint operations.
from attn_mods.tiles import boolean, comparison, division, interval, lookup, trailing_axes  # noqa: F401
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid, per_tile
from attn_mods.tiles.joint import Derived, evaluate_joint
from attn_mods.tiles.leaves import each_tensor, leaves
from attn_mods.tiles.states import FULL, UNKNOWN, States
from attn_mods.tiles.values import Interval, Truth, Value

# Tiles of one plane evaluated at once, all batches, heads and trailing elements counted.
_TILES_AT_ONCE = 24_576

# From this many tiles on, tiles of _COARSE x _COARSE blocks are tried first.
_COARSE_FROM = 1 << 18
_COARSE = 8


@dataclass(frozen=True, slots=True)
class Calculus:
    """One rule on one grid, with its leaves.

    Attributes:
        graph: The recorded rule.
        grid: The tiles.
        values: Leaves by node number.
        derived: Tables derived from captured ones.
    """

    graph: Graph
    grid: Grid
    values: dict[int, Value]
    derived: Derived

    @classmethod
    def of(cls, graph: Graph, grid: Grid) -> Calculus:
        """Evaluate the leaves."""
        return cls(graph, grid, leaves(graph, grid), Derived.for_pairs(grid.q_len * grid.kv_len))

    def states(self) -> States:
        """The states of all tiles, [B|1, H|1, rows, columns]; an extent is 1 where the rule does not depend on it."""
        tiles = self.grid.rows * self.grid.columns
        if tiles >= _COARSE_FROM and self.graph.root.is_joint:
            return States(self._coarse_to_fine())
        return States(self._in_bands())

    def _extents(self) -> tuple[int, int]:
        dependence = self.graph.root.dependence
        return (self.grid.B if dependence & BATCH else 1, self.grid.H if dependence & HEAD else 1)

    def width(self) -> int:
        """Elements of the widest joint value on one tile."""
        widest = max((torch.Size(node.shape).numel() for node in self.graph.nodes if node.is_joint), default=1)
        batch = self.grid.B if any(node.dependence & BATCH for node in self.graph.nodes) else 1
        heads = self.grid.H if any(node.dependence & HEAD for node in self.graph.nodes) else 1
        return max(1, widest * batch * heads)

    def _in_bands(self) -> Tensor:
        grid = self.grid
        codes = torch.empty(*self._extents(), grid.rows, grid.columns, dtype=torch.uint8, device=grid.device)
        step = max(1, at_once(_TILES_AT_ONCE, grid.device) // (self.width() * max(1, grid.columns)))
        for start in range(0, grid.rows, step):
            stop = min(start + step, grid.rows)
            codes[:, :, start:stop] = self._codes(lambda tensor: _rows(tensor, start, stop, grid.rows))  # noqa: B023
        return codes

    def _coarse_to_fine(self) -> Tensor:
        grid = self.grid
        coarse = _coarsened(self)._in_bands()
        undecided = (coarse > FULL).any(0).any(0)
        if int(torch.count_nonzero(undecided)) * 4 > undecided.numel():
            return self._in_bands()
        codes = _blown_up(coarse, grid.rows, grid.columns)
        flat = codes.view(*codes.shape[:2], -1)
        cells = undecided.nonzero()
        step = max(1, at_once(_TILES_AT_ONCE, grid.device) // (self.width() * _COARSE * _COARSE))
        inner = torch.arange(_COARSE, device=grid.device)
        for start in range(0, len(cells), step):
            chunk = cells[start : start + step]
            shape = (chunk.shape[0], _COARSE, _COARSE)
            rows = (chunk[:, 0, None, None] * _COARSE + inner[:, None]).expand(shape).flatten()
            columns = (chunk[:, 1, None, None] * _COARSE + inner).expand(shape).flatten()
            if grid.rows % _COARSE or grid.columns % _COARSE:
                inside = (rows < grid.rows) & (columns < grid.columns)
                rows, columns = rows[inside], columns[inside]
            flat.index_copy_(2, rows * grid.columns + columns, self.codes_of(rows, columns).expand(*flat.shape[:2], -1))
        return codes

    def codes_of(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Codes of the tiles (rows[n], columns[n]): uint8 [B|1, H|1, n]."""
        return self._codes(lambda tensor: _listed(tensor, rows, columns, self.grid)).squeeze(3)

    def _codes(self, take: Callable[[Tensor], Tensor]) -> Tensor:
        """Codes of the tiles that `take` selects from a leaf."""
        values = {number: each_tensor(value, take) for number, value in self.values.items()}
        for node in self.graph.nodes:
            if node.is_joint:
                device = torch.device(self.grid.device)
                values[node.number] = evaluate_joint(node, lambda operand: values[operand.number], device, self.derived)
        root = values[self.graph.root.number]
        assert isinstance(root, Truth)
        return States.from_planes(root.every, root.some, root.mixed).codes


def _rows(tensor: Tensor, start: int, stop: int, rows: int) -> Tensor:
    return tensor[:, :, start:stop] if tensor.shape[2] == rows else tensor


def _listed(tensor: Tensor, rows: Tensor, columns: Tensor, grid: Grid) -> Tensor:
    """Entries of a leaf at listed tiles, [B|1, H|1, n|1, 1, *event]."""
    if tensor.shape[2] > 1:
        return tensor.index_select(2, rows)
    if tensor.shape[3] > 1:
        return tensor[:, :, 0].index_select(2, columns).unsqueeze(3)
    return tensor


def _coarsened(calculus: Calculus) -> Calculus:
    """The same rule on tiles of _COARSE x _COARSE blocks, of which only EMPTY and FULL are asked."""
    grid = calculus.grid
    block = (grid.block_size[0] * _COARSE, grid.block_size[1] * _COARSE)
    coarse = Grid(grid.q_len, grid.kv_len, block, grid.B, grid.H, grid.device, grid.q_offset, grid.kv_offset)
    values = {number: _coarser(value) for number, value in calculus.values.items()}
    return Calculus(calculus.graph, coarse, values, calculus.derived)


def _coarser(value: Value) -> Value:
    def reduced(tensor: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        return per_tile(per_tile(tensor, QUERY, _COARSE, reduce), KEY, _COARSE, reduce)

    if isinstance(value, Truth):
        return Truth(reduced(value.every, torch.all), reduced(value.some, torch.any))
    if isinstance(value, Interval) and value.low is not value.high:
        return Interval(reduced(value.low, torch.amin), reduced(value.high, torch.amax), value.dtype, value.bounds)
    return value


def _blown_up(coarse: Tensor, rows: int, columns: int) -> Tensor:
    """Codes of coarse tiles given to each block of theirs."""
    codes = torch.empty(*coarse.shape[:2], rows, columns, dtype=coarse.dtype, device=coarse.device)
    step = _COARSE * max(1, at_once(_TILES_AT_ONCE, coarse.device) // (_COARSE * columns))
    for start in range(0, rows, step):
        part = coarse[:, :, start // _COARSE : -(-(start + step) // _COARSE)]
        wide = part.repeat_interleave(_COARSE, 3)[..., :columns]
        codes[:, :, start : start + step] = wide.repeat_interleave(_COARSE, 2)[:, :, : min(step, rows - start)]
    return codes


def unknown_states(grid: Grid) -> States:
    """No claim about any tile."""
    codes = torch.full((grid.B, grid.H, grid.rows, grid.columns), UNKNOWN, dtype=torch.uint8, device=grid.device)
    return States(codes)
