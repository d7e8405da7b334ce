"""The entry points: tile states of any rule, and the exact states of all its tiles."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.kernels.chunks import at_once
from attn_mods.tiles.calculus import Calculus, unknown_states
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid
from attn_mods.tiles.refining import Verdicts, undecided_parts
from attn_mods.tiles.rule import Rule, check_rule, describe
from attn_mods.tiles.scanning import SAMPLES, Tiles, probe, sample, scan
from attn_mods.tiles.states import MIXED, UNKNOWN, States
from attn_mods.tiles.tabulated import tabulated
from attn_mods.tiles.trace import recorded

# Codes looked through at once.
_TILES_AT_ONCE = 24_576

# Tiles are sampled first if they have more than so many times as many pairs as are sampled.
_SAMPLED_FROM = 4


@dataclass(frozen=True, eq=False)
class Analysis:
    """What is known of every tile, and what it took.

    Attributes:
        states: The states of all tiles, none UNKNOWN.
        tiles: Number of tiles, of all batches and heads the rule depends on.
        unknown: Tiles that the calculus, or the states given, left UNKNOWN.
        sampled: Positions evaluated to find a kept and a dropped one in those.
        scanned: Positions evaluated one by one in what was left.
        reason: Why the calculus gave up on the whole rule, or None.
    """

    states: States
    tiles: int
    unknown: int
    sampled: int
    scanned: int
    reason: str | None = None


def tile_states(rule: Rule, grid: Grid) -> States:
    """States of a rule's tiles by the calculus alone: never wrong, UNKNOWN where it does not know.

    Args:
        rule: A mask_mod, rule(b, h, q_idx, kv_idx) -> bool tensor. It is run once, on stand-ins.
        grid: The tiles.

    Returns:
        States [B|1, H|1, rows, columns]; an extent is 1 where the rule does not depend on the index.

    Raises:
        RuleError: If the rule is no mask_mod.
    """
    return _calculate(rule, grid)[0]


def resolve(rule: Rule, grid: Grid, states: States) -> Analysis:
    """Settle the UNKNOWN tiles of given states by sampling and bounded scanning.

    Args:
        rule: The mask_mod the states are of.
        grid: The tiles.
        states: Claims that hold, [B|1, H|1, rows, columns].

    Raises:
        RuleError: If the rule is no mask_mod.
        ValueError: If the states do not fit the grid.
        Exception: Whatever the rule itself raises at real positions.
    """
    check_rule(rule)
    _check_shape(states, grid)
    codes = states.codes.clone(memory_format=torch.contiguous_format)
    graph, reason = recorded(rule, grid) if _unknown(codes).numel() else (None, None)
    return _settle(rule, grid, codes, graph, reason)


def analyse(rule: Rule, grid: Grid) -> Analysis:
    """Exact states of a rule's tiles, without evaluating it at all positions.

    The same as `resolve(rule, grid, tile_states(rule, grid))`.

    Raises:
        RuleError: If the rule is no mask_mod.
        Exception: Whatever the rule itself raises at real positions.
    """
    states, graph, reason = _calculate(rule, grid)
    return _settle(rule, grid, states.codes, graph, reason)


def _calculate(rule: Rule, grid: Grid) -> tuple[States, Graph | None, str | None]:
    check_rule(rule)
    if grid.is_empty:
        codes = torch.zeros(grid.B, grid.H, grid.rows, grid.columns, dtype=torch.uint8, device=grid.device)
        return States(codes), None, None
    graph, reason = recorded(rule, grid)
    if graph is not None:
        try:
            with torch.no_grad():
                return Calculus.of(graph, grid).states(), graph, None
        except Exception as error:  # the scan then raises the rule's own error, if it is one
            reason = describe(error)
    return unknown_states(grid), None, reason


def _settle(rule: Rule, grid: Grid, codes: Tensor, graph: Graph | None, reason: str | None) -> Analysis:
    """Overwrite the UNKNOWN among contiguous codes."""
    unknown = _unknown(codes)
    left = unknown.numel()
    if not left:
        return Analysis(States(codes), codes.numel(), 0, 0, 0, reason)
    listed = Tiles.at(grid, *torch.unravel_index(unknown, codes.shape))
    settled = torch.full((left,), MIXED, dtype=torch.uint8, device=codes.device)
    mixed, sampled = torch.zeros_like(unknown, dtype=torch.bool), 0
    with torch.no_grad():
        if graph is None:
            probe(rule, grid)
        if math.prod(grid.block_size) > SAMPLES * _SAMPLED_FROM:
            graph = _to_evaluate(graph, grid, SAMPLES * left)
            mixed, sampled = sample(rule, graph, listed)
        settled[~mixed], scanned = _decide(rule, grid, graph, listed.part(~mixed))
    codes.view(-1).index_copy_(0, unknown, settled)
    return Analysis(States(codes), codes.numel(), left, sampled, scanned, reason)


def _unknown(codes: Tensor) -> Tensor:
    """Flat indices of the UNKNOWN tiles."""
    step = at_once(_TILES_AT_ONCE, codes.device)
    flat = codes.view(-1)
    found = [(flat[s : s + step] == UNKNOWN).nonzero()[:, 0] + s for s in range(0, flat.numel(), step)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.long, device=codes.device)


def _to_evaluate(graph: Graph | None, grid: Grid, pairs: int) -> Graph | None:
    """The graph to evaluate so many pairs by: with tables if these have fewer positions.

    An error at a position that none of the pairs may have leaves it as it is.
    """
    if graph is None or graph.is_direct:
        return graph
    repeated = [grid.extent(variable) for variable in (BATCH, HEAD) if graph.root.dependence & variable]
    if pairs <= (grid.extent(QUERY) + grid.extent(KEY)) * math.prod(repeated):
        return graph
    with suppress(Exception):
        return tabulated(graph, grid)
    return graph


def _decide(rule: Rule, grid: Grid, graph: Graph | None, tiles: Tiles) -> tuple[Tensor, int]:
    """Codes of tiles, by the calculus on their parts and a scan of the undecided parts, and the positions scanned."""
    verdicts = Verdicts.open(len(tiles), grid.device)
    parts, number = tiles, torch.arange(len(tiles), device=grid.device)
    if graph is not None:
        # An error of the calculus leaves every part undecided; the scan raises it if it is the rule's own.
        with suppress(Exception):
            parts, number = undecided_parts(graph, grid, tiles, verdicts)
    codes, scanned = scan(rule, _to_evaluate(graph, grid, parts.pairs()), parts)
    verdicts.note(number, codes)
    return verdicts.codes(), scanned


def _check_shape(states: States, grid: Grid) -> None:
    shape = tuple(states.codes.shape)
    if shape[2:] != (grid.rows, grid.columns) or shape[0] not in (1, grid.B) or shape[1] not in (1, grid.H):
        raise ValueError(
            f"states have shape {shape}, the grid needs [{grid.B}|1, {grid.H}|1, {grid.rows}, {grid.columns}] "
            "(batch, heads, tile rows, tile columns)"
        )
