"""Sampling, parts of tiles, scanning: each settles what it is there for, in bounded pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods.tiles import UNKNOWN, Grid, States, analyse, resolve, scanning
from attn_mods.tiles.refining import Verdicts, undecided_parts
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.scanning import Tiles
from attn_mods.tiles.trace import trace
from tests.block_mask_equality import assert_sound, dense_truth

GRID = Grid(100, 90, (32, 16), B=2, H=2, q_offset=3, kv_offset=2)
SMALL = Grid(20, 30, (8, 16))


def hard(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q * k) ^ (q + k + b)) % 97 == h


def moved(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return hard(b, h, q + 3, k + 2)


@pytest.mark.parametrize("positions", [1, 70, 1000, 1 << 20])
def test_every_tile_scanned(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_POSITIONS_AT_ONCE", positions)
    grid = GRID if positions > 1 else Grid(9, 9, (4, 4), B=2, H=2, q_offset=3, kv_offset=2)
    unknown = States(torch.full((2, 2, grid.rows, grid.columns), UNKNOWN, dtype=torch.uint8))
    analysis = resolve(hard, grid, unknown)
    assert_sound(analysis.states, dense_truth(moved, 2, 2, grid.q_len, grid.kv_len), grid)
    assert not bool(analysis.states.unknown.any())
    assert analysis.unknown == analysis.tiles == 4 * grid.rows * grid.columns


def test_states_of_one_batch_are_settled_for_all() -> None:
    unknown = States(torch.full((1, 1, GRID.rows, GRID.columns), UNKNOWN, dtype=torch.uint8))

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q * k) % 5 == 1

    codes = resolve(rule, GRID, unknown).states.codes
    truth = dense_truth(lambda b, h, q, k: rule(b, h, q + 3, k + 2), 1, 1, GRID.q_len, GRID.kv_len)
    assert codes.shape == (1, 1, GRID.rows, GRID.columns)
    assert not bool((codes == UNKNOWN).any())
    assert_sound(States(codes), truth, GRID)
    assert_sound(States(codes.expand(2, 2, -1, -1)), truth.expand(2, 2, -1, -1), GRID)


def scan_all(rule: Rule, by_graph: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """Scan all tiles of a small grid, rightly: how many positions were evaluated at once each time, and altogether."""
    sizes: list[int] = []
    rectangles = scanning._rectangles

    def recorded(*arguments: Any) -> tuple[Tensor, Tensor]:
        kept, inside = rectangles(*arguments)
        sizes.append(kept.numel())
        return kept, inside

    monkeypatch.setattr(scanning, "_rectangles", recorded)
    rows, columns = torch.meshgrid(torch.arange(SMALL.rows), torch.arange(SMALL.columns), indexing="ij")
    zero = torch.zeros(rows.numel(), dtype=torch.int64)
    tiles = Tiles.at(SMALL, zero, zero, rows.flatten(), columns.flatten())
    codes, evaluated = scanning.scan(rule, trace(rule, SMALL) if by_graph else None, tiles)
    states = States(codes.view(1, 1, SMALL.rows, SMALL.columns))
    assert_sound(states, dense_truth(rule, 1, 1, SMALL.q_len, SMALL.kv_len), SMALL)
    return sizes, evaluated


@pytest.mark.parametrize("by_graph", [False, True], ids=["by_vmap", "by_graph"])
@pytest.mark.parametrize("positions", [1, 70, 1000, 1 << 20])
def test_no_more_positions_are_evaluated_at_once_than_allowed(
    positions: int, by_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_POSITIONS_AT_ONCE", positions)
    sizes, evaluated = scan_all(hard, by_graph, monkeypatch)
    assert max(sizes) <= positions
    # ragged tiles are evaluated as if they were whole
    assert sum(sizes) == evaluated == SMALL.rows * SMALL.columns * 8 * 16


def test_only_undecided_parts_are_scanned() -> None:
    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= 96) & (k >= 80) & ((q * k) % 1009 == 1008)

    grid = Grid(128, 128, (128, 128))
    analysis = analyse(rule, grid)
    truth = dense_truth(rule, 1, 1, 128, 128)
    assert_sound(analysis.states, truth, grid)
    assert analysis.unknown == 1
    assert 0 < analysis.scanned <= 32 * 48


def test_parts_speak_for_their_tile() -> None:
    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k > 20 + 9 * h

    grid = Grid(45, 50, (16, 16), H=2)
    rows, columns = torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
    head = torch.tensor([0, 1]).repeat_interleave(rows.numel())
    tiles = Tiles.at(grid, torch.zeros_like(head), head, rows.flatten().repeat(2), columns.flatten().repeat(2))
    verdicts = Verdicts.open(len(tiles), "cpu")
    parts, _ = undecided_parts(trace(rule, grid), grid, tiles, verdicts)
    assert len(parts) == 0
    codes = verdicts.codes().view(1, 2, grid.rows, grid.columns)
    assert_sound(States(codes), dense_truth(rule, 1, 2, 45, 50), grid)


def test_sampling_counts_its_positions() -> None:
    analysis = analyse(lambda b, h, q, k: (q >= k) & (q - k < 9), Grid(64, 64, (32, 32)))
    assert (analysis.unknown, analysis.sampled, analysis.scanned) == (2, 2 * 24, 0)


def test_a_rule_that_works_only_under_torchs_own_nest_of_vmaps() -> None:
    """torch subtracts from a bool of one level a number of another, and refuses both of one level."""
    table = torch.arange(24) % 2 == 0

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return table[q] - k < 0

    grid = Grid(24, 24, (8, 8))
    assert_sound(analyse(rule, grid).states, dense_truth(rule, 1, 1, 24, 24), grid)


@pytest.mark.parametrize("elements", [1, 1 << 11, 1 << 20])
def test_terms_with_many_elements_are_evaluated_at_fewer_positions(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_ELEMENTS_AT_ONCE", elements)
    starts = torch.arange(0, 64, 2)

    def wide(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q ^ k) % 3 == 0) & ((starts * (starts <= k)).max() <= q)

    sizes, _ = scan_all(wide, True, monkeypatch)
    assert max(sizes) * starts.numel() <= max(elements, starts.numel())
