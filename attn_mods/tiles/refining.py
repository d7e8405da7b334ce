"""Undecided tiles by their parts: the calculus again, on parts of a tile, so that only undecided parts are scanned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.tiles.calculus import Calculus
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import Grid
from attn_mods.tiles.scanning import Tiles
from attn_mods.tiles.states import EMPTY, FULL, MIXED, UNKNOWN

# Parts along each side of a tile: the first number that divides the block into parts of enough positions a side.
_PARTS = (8, 4, 2)
_FEWEST = 8

# Parts evaluated at once.
_PARTS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What is certain of a list of tiles.

    Attributes:
        kept: bool [n], the tile certainly keeps some position.
        dropped: bool [n], it certainly drops some.
    """

    kept: Tensor
    dropped: Tensor

    @classmethod
    def open(cls, count: int, device: torch.device | str) -> Verdicts:
        """Nothing certain yet."""
        return cls(*(torch.zeros(count, dtype=torch.bool, device=device) for _ in range(2)))

    def note(self, tile: Tensor, codes: Tensor) -> None:
        """Take in the codes of parts of the tiles with the given numbers."""
        self.kept[tile[(codes == FULL) | (codes == MIXED)]] = True
        self.dropped[tile[(codes == EMPTY) | (codes == MIXED)]] = True

    def codes(self) -> Tensor:
        """The codes of the tiles, once every part of each has been noted: uint8 [n]."""
        codes = torch.where(self.dropped, torch.where(self.kept, MIXED, EMPTY), FULL)
        return codes.to(torch.uint8)


def undecided_parts(graph: Graph, grid: Grid, tiles: Tiles, verdicts: Verdicts) -> tuple[Tiles, Tensor]:
    """The parts of tiles that the calculus does not decide; what it does decide is noted.

    Args:
        graph: The recorded rule.
        grid: The grid of the tiles.
        tiles: Tiles of the grid.
        verdicts: What is certain of them.

    Returns:
        The undecided parts of those tiles that are not certainly mixed, and the number of the tile each is part of.
    """
    sides = next((parts for parts in _PARTS if all(_divides(parts, block) for block in grid.block_size)), None)
    if sides is None or not len(tiles):
        return tiles, torch.arange(len(tiles), device=grid.device)
    block = (grid.block_size[0] // sides, grid.block_size[1] // sides)
    finer = Grid(grid.q_len, grid.kv_len, block, grid.B, grid.H, grid.device, grid.q_offset, grid.kv_offset)
    calculus = Calculus.of(graph, finer)
    step = max(1, _PARTS_AT_ONCE // (sides * sides * calculus.width()))
    found = [_undecided(calculus, tiles, start, step, sides, verdicts) for start in range(0, len(tiles), step)]
    number, row, column = (torch.cat(lists) for lists in zip(*found, strict=True))
    kept_open = ~(verdicts.kept & verdicts.dropped)[number]
    number, row, column = number[kept_open], row[kept_open], column[kept_open]
    return Tiles.at(finer, tiles.batch[number], tiles.head[number], row, column), number


def _divides(parts: int, block: int) -> bool:
    return block % parts == 0 and block // parts >= _FEWEST


def _undecided(
    calculus: Calculus, tiles: Tiles, start: int, step: int, sides: int, verdicts: Verdicts
) -> tuple[Tensor, Tensor, Tensor]:
    """Number of the tile, and row and column of the part, of the undecided parts of tiles start..start+step-1."""
    part = tiles.part(slice(start, start + step))
    inner = torch.arange(sides, device=part.row.device)
    shape = (len(part), sides, sides)
    row = (part.row[:, None, None] * sides + inner[:, None]).expand(shape).flatten()
    column = (part.column[:, None, None] * sides + inner).expand(shape).flatten()
    number = (start + torch.arange(len(part), device=row.device)).repeat_interleave(sides * sides)
    inside = (row < calculus.grid.rows) & (column < calculus.grid.columns)
    row, column, number = row[inside], column[inside], number[inside]
    codes = calculus.codes_of(row, column)
    batch = tiles.batch[number] if codes.shape[0] > 1 else 0
    head = tiles.head[number] if codes.shape[1] > 1 else 0
    codes = codes.expand(*codes.shape[:2], len(row))[batch, head, torch.arange(len(row), device=row.device)]
    verdicts.note(number, codes)
    unknown = codes == UNKNOWN
    return number[unknown], row[unknown], column[unknown]
