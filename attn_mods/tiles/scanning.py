"""Settle the tiles the calculus left UNKNOWN: by a few sampled positions, then position by position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid
from attn_mods.tiles.pointwise import evaluate, index_transform
from attn_mods.tiles.rule import Rule, check_result
from attn_mods.tiles.states import EMPTY, FULL, MIXED

# Evaluated at once: positions, and elements of the widest term that a rule makes at each.
_POSITIONS_AT_ONCE = 1 << 20
_ELEMENTS_AT_ONCE = 1 << 24

# Sampled along each side of a tile, in 1/128 of its length, and along its diagonal.
_GRID_SAMPLES = (0, 37, 91, 128)

SAMPLES = len(_GRID_SAMPLES) * (len(_GRID_SAMPLES) + 2)
"""Pairs sampled in a tile: a grid, and as near the line i = j as each of its rows and columns comes."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A list of tiles: index, and first and last query and key position, of each; int64 [n]."""

    batch: Tensor
    head: Tensor
    row: Tensor
    column: Tensor
    q_first: Tensor
    q_last: Tensor
    kv_first: Tensor
    kv_last: Tensor

    @classmethod
    def at(cls, grid: Grid, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tiles:
        """The tiles of a grid with the given indices; positions are absolute."""
        ends = []
        for index, variable in ((row, QUERY), (column, KEY)):
            first = index * grid.block(variable)
            last = (first + grid.block(variable)).clamp(max=grid.extent(variable)) - 1
            ends += [first + grid.offset(variable), last + grid.offset(variable)]
        return cls(batch, head, row, column, *ends)

    def __len__(self) -> int:
        return self.batch.numel()

    def pairs(self) -> int:
        """Number of pairs of all tiles together."""
        return int(((self.q_last - self.q_first + 1) * (self.kv_last - self.kv_first + 1)).sum())

    def part(self, index: slice | Tensor) -> Tiles:
        """Some of the tiles."""
        return Tiles(*(getattr(self, name)[index] for name in self.__slots__))


def sample(rule: Rule, graph: Graph | None, tiles: Tiles) -> tuple[Tensor, int]:
    """Which tiles hold a kept and a dropped position among 24 of theirs: bool [n], and the number of positions."""
    mixed = torch.zeros(len(tiles), dtype=torch.bool, device=tiles.batch.device)
    step = max(1, _positions_at_once(graph) // 64)
    evaluated = 0
    for start in range(0, len(tiles), step):
        part = tiles.part(slice(start, start + step))
        q, kv = _sampled_positions(part)
        try:
            kept = _at_positions(rule, graph, part, q, kv)
        except Exception:  # some errors depend on the nest of vmaps: the scan has torch's, and raises the rule's own
            break
        mixed[start : start + step] = kept.any(1) & ~kept.all(1)
        evaluated += kept.numel()
    return mixed, evaluated


def _positions_at_once(graph: Graph | None) -> int:
    widest = 1 if graph is None else max(torch.Size(node.shape).numel() for node in graph.nodes)
    return min(_POSITIONS_AT_ONCE, max(1, _ELEMENTS_AT_ONCE // max(1, widest)))


def _sampled_positions(tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Query and key positions [n, 24]: a 4 x 4 grid, and 8 as near the line i = j as the tile reaches."""
    fraction = torch.tensor(_GRID_SAMPLES, device=tiles.batch.device)
    q = tiles.q_first[:, None] + (tiles.q_last - tiles.q_first)[:, None] * fraction // 128
    kv = tiles.kv_first[:, None] + (tiles.kv_last - tiles.kv_first)[:, None] * fraction // 128
    near = torch.cat([q, kv], 1)
    near_q = near.clamp(tiles.q_first[:, None], tiles.q_last[:, None])
    near_kv = near_q.clamp(tiles.kv_first[:, None], tiles.kv_last[:, None])
    count = len(_GRID_SAMPLES)
    return (
        torch.cat([q.repeat_interleave(count, 1), near_q], 1),
        torch.cat([kv.repeat(1, count), near_kv], 1),
    )


def _at_positions(rule: Rule, graph: Graph | None, tiles: Tiles, q: Tensor, kv: Tensor) -> Tensor:
    """The rule at listed positions of each tile, bool [n, positions]."""
    if graph is not None and graph.is_direct:
        return _by_broadcasting(graph, tiles, q[:, None, None], kv[:, None, None])[:, 0, 0]
    per_position = torch.vmap(_checked(rule), in_dims=(None, None, 0, 0))
    with index_transform():
        return torch.vmap(per_position)(tiles.batch, tiles.head, q, kv)


def _by_broadcasting(graph: Graph, tiles: Tiles, q: Tensor, kv: Tensor) -> Tensor:
    """The rule in each tile at q [n, 1, s, 1 or t] and kv [n, 1, 1, t]: bool [n, 1, s, t]."""
    index_values = {
        BATCH: tiles.batch[:, None, None, None],
        HEAD: tiles.head[:, None, None, None],
        QUERY: q,
        KEY: kv,
    }
    value = evaluate(graph.nodes, (graph.root,), index_values)[graph.root.number]
    return value.expand(*q.shape[:3], kv.shape[3])


def scan(rule: Rule, graph: Graph | None, tiles: Tiles) -> tuple[Tensor, int]:
    """Codes of tiles by the rule at every position: uint8 [n], and the number of positions."""
    some = torch.zeros(len(tiles), dtype=torch.bool, device=tiles.batch.device)
    every = torch.ones_like(some)
    evaluated = 0
    for here, kept, inside in _pieces(rule, graph, tiles):
        some[here] |= (kept & inside).flatten(1).any(1)
        every[here] &= (kept | ~inside).flatten(1).all(1)
        evaluated += kept.numel()
    return _codes(some, every), evaluated


def count_kept(rule: Rule, tiles: Tiles) -> int:
    """How many positions of the tiles the rule keeps."""
    return sum(int((kept & inside).sum()) for _, kept, inside in _pieces(rule, None, tiles))


def _pieces(rule: Rule, graph: Graph | None, tiles: Tiles) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Every position of the tiles in bounded pieces: which tiles, the rule there, and what lies inside its tile."""
    if not len(tiles):
        return
    q_size = int((tiles.q_last - tiles.q_first).max()) + 1
    kv_size = int((tiles.kv_last - tiles.kv_first).max()) + 1
    at_once = _positions_at_once(graph)
    kv_step = min(kv_size, at_once)
    q_step = min(q_size, max(1, at_once // kv_step))
    step = max(1, at_once // (q_step * kv_step))
    for start in range(0, len(tiles), step):
        here = slice(start, start + step)
        part = tiles.part(here)
        for q_start in range(0, q_size, q_step):
            for kv_start in range(0, kv_size, kv_step):
                q = _run(part.q_first + q_start, min(q_step, q_size - q_start))
                kv = _run(part.kv_first + kv_start, min(kv_step, kv_size - kv_start))
                yield here, *_rectangles(rule, graph, part, q, kv)


def _run(first: Tensor, count: int) -> Tensor:
    return first[:, None] + torch.arange(count, device=first.device)


def _rectangles(rule: Rule, graph: Graph | None, tiles: Tiles, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """The rule at all pairs of q [n, s] and kv [n, t], bool [n, s, t], and which pairs lie inside the tile."""
    inside = (q <= tiles.q_last[:, None])[:, :, None] & (kv <= tiles.kv_last[:, None])[:, None, :]
    q = torch.minimum(q, tiles.q_last[:, None])
    kv = torch.minimum(kv, tiles.kv_last[:, None])
    if graph is not None and graph.is_direct:
        return _by_broadcasting(graph, tiles, q[:, None, :, None], kv[:, None, None, :])[:, 0], inside
    per_key = torch.vmap(_checked(rule), in_dims=(None, None, None, 0))
    per_query = torch.vmap(per_key, in_dims=(None, None, 0, None))
    with index_transform():
        return torch.vmap(per_query)(tiles.batch.clone(), tiles.head.clone(), q, kv), inside


def _checked(rule: Rule) -> Rule:
    def checked(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        result = rule(b, h, q_idx, kv_idx)
        check_result(rule, result)
        return result

    return checked


def _codes(some: Tensor, every: Tensor) -> Tensor:
    codes = torch.full(some.shape, MIXED, dtype=torch.uint8, device=some.device)
    return codes.masked_fill(~some, EMPTY).masked_fill(every, FULL)


def probe(rule: Rule, grid: Grid) -> None:
    """Run the rule at every query position and at every key position, so that an error of its own shows at once.

    The nest of vmaps is torch's own, batches outermost, because some errors depend on it.
    """
    nested: Rule = _checked(rule)
    for axis in (3, 2, 1, 0):
        nested = torch.vmap(nested, in_dims=tuple(0 if position == axis else None for position in range(4)))
    with index_transform():
        for q_stop, kv_stop in ((None, 1), (1, None)):
            nested(
                grid.index_values(BATCH).flatten(),
                grid.index_values(HEAD).flatten(),
                grid.index_values(QUERY, stop=q_stop).flatten(),
                grid.index_values(KEY, stop=kv_stop).flatten(),
            )
