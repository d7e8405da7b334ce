"""What a rule computes of one position alone is computed once, with the same BlockMask as torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

import attn_mods as am
from attn_mods.tiles import Grid, analysis
from attn_mods.tiles import tabulated as module
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.tabulated import tabulated
from attn_mods.tiles.trace import trace
from tests.block_mask_equality import assert_same_block_mask

STARTS = torch.arange(0, 64, 3)
ROWS = torch.randn(70, 70, generator=torch.Generator().manual_seed(0))
GRID = Grid(40, 52, (8, 4), B=2, H=2, q_offset=5, kv_offset=2)


def of_keys(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q ^ k) % 3 == 0) & ((STARTS * (k >= STARTS)).max() <= q)


def of_both(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((STARTS * (q >= STARTS)).max() ^ (STARTS * (k >= STARTS)).max() ^ b) % 5 < 3


def of_a_table(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (STARTS[(k >= STARTS).sum() - 1] * q) % 7 < 3 + h


def of_pairs(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (STARTS * (k >= STARTS) ^ q).max() % 3 == 0


def of_samples(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((STARTS * (k + b >= STARTS)).max() ^ q) % 3 == 0


def of_heads(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((STARTS[h] * (q >= STARTS)).max() ^ (STARTS * (k >= STARTS + h)).max() ^ b) % 5 < 2


def of_samples_and_heads(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (((STARTS[h] + b) * (q >= STARTS)).max() % 5 < 3) & (ROWS[k + b].softmax(0)[q] > h / 140)


def of_parts_of_rows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.stack([ROWS[q], -ROWS[q]]).cumsum(1)[k % 2].max() > 4


def of_rows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (ROWS[q].softmax(0)[k] > 1 / 64) & (ROWS[k].cumsum(0)[q - 60] > 0)


def of_rows_of_samples(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.stack([ROWS[q], ROWS[q + b]]).cumsum(1)[h, k] > 0


def of_sorted_rows(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (ROWS[q].sort().values[k] > 0.5) | (ROWS[k].max(dim=0)[1] == q) | (ROWS[k].aminmax().min < -2.5)


def of_row_and_element(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    row = ROWS[q].softmax(0)
    return (row[k] > 1 / 64) & (row.sum() * k > 3)


def of_chosen_keys(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (ROWS[q].topk(9).indices == k).any()


def of_numbers(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q * k) % 7 < 3


RULES = [of_keys, of_both, of_a_table, of_pairs, of_samples, of_heads, of_rows, of_rows_of_samples, of_sorted_rows]
RULES += [of_row_and_element, of_samples_and_heads, of_parts_of_rows, of_chosen_keys, of_numbers]


@pytest.mark.parametrize(
    ("rule", "is_tabulated"),
    [(rule, rule not in (of_pairs, of_parts_of_rows, of_chosen_keys, of_numbers)) for rule in RULES],
)
def test_which_rules_are_read_from_tables(rule: Rule, is_tabulated: bool) -> None:
    graph = trace(rule, GRID)
    found = tabulated(graph, GRID)
    assert (found is not graph) == is_tabulated
    assert all(node.direct for node in found.nodes) == (is_tabulated or rule is of_numbers)
    assert all(node.direct for node in graph.nodes) == (rule is of_numbers)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lengths", [(40, 52), (33, 7), (1, 64)], ids=str)
def test_lists_are_torchs(rule: Rule, lengths: tuple[int, int]) -> None:
    sizes = 2, 2, *lengths, "cpu", (8, 4)
    assert_same_block_mask(am.create_block_mask(rule, *sizes), torch_create_block_mask(rule, *sizes))


def test_an_error_at_a_position_that_no_scan_may_come_to_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Grid] = []

    def fails(graph: Graph, grid: Grid) -> Graph:
        asked.append(grid)
        raise IndexError

    monkeypatch.setattr(analysis, "tabulated", fails)
    sizes = 2, 2, 40, 52, "cpu", (8, 4)
    assert_same_block_mask(am.create_block_mask(of_keys, *sizes), torch_create_block_mask(of_keys, *sizes))
    assert asked


@pytest.mark.parametrize(("block", "pays"), [(8, True), (512, False)])
def test_tables_are_made_where_they_have_fewer_positions_than_there_are_pairs(
    block: int, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Grid] = []

    def recorded(graph: Graph, grid: Grid) -> Graph:
        asked.append(grid)
        return tabulated(graph, grid)

    monkeypatch.setattr(analysis, "tabulated", recorded)
    analysis.analyse(of_keys, Grid(512, 512, (block, block)))
    assert bool(asked) == pays


def test_what_is_too_large_for_a_table_is_evaluated_at_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 64 * 40 - 1)
    for rule, fits in ((of_keys, True), (of_samples_and_heads, False), (of_rows, False)):
        graph = trace(rule, GRID)
        assert (tabulated(graph, GRID) is not graph) == fits
