"""The codes of a rule's own kernels: what the rule keeps, tile for tile, by rows and by columns."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from attn_mods.block_mask import create_block_mask
from attn_mods.fused import kernels, planes
from attn_mods.fused.source import COLUMNS, ROWS
from attn_mods.tiles import Grid
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import recorded
from tests.fused.comparison import assert_true_planes, planes_of, true_codes
from tests.fused.written_rules import documents, grid, grids, unfit_rules, written_rules

pytestmark = pytest.mark.usefixtures("interpreter")

RULES, UNFIT = written_rules("cpu"), unfit_rules("cpu")


def check(rule: Rule, grid: Grid, name: str, separate_full_blocks: bool = True) -> None:
    planes = planes_of(rule, grid, name, separate_full_blocks)
    assert planes is not None, f"{name}: no kernel"
    assert_true_planes(planes, true_codes(rule, grid, separate_full_blocks), name)


@pytest.mark.parametrize("name", RULES)
def test_written_rule(name: str) -> None:
    check(RULES[name], grid("cpu"), name)


@pytest.mark.parametrize("name", UNFIT)
def test_no_kernel_for(name: str) -> None:
    assert planes_of(UNFIT[name], grid("cpu"), name) is None


@pytest.mark.parametrize("where", grids("cpu"), ids=lambda where: f"{where.q_len}x{where.kv_len} of {where.block_size}")
def test_grid(where: Grid) -> None:
    check(documents("cpu"), where, "documents")
    for separate_full_blocks in (True, False):
        check(lambda b, h, q, k: q >= k, where, "causal", separate_full_blocks)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: q - k >= 25,
        lambda b, h, q, k: (q + k < 90) | (q > 95),
        lambda b, h, q, k: ((q - k).abs() > 5) & (((q * k) % 7 != 3) | (q + k > 9)),
    ],
    ids=["below the diagonal", "a corner and the last rows", "off the diagonal, and a few unknown"],
)
def test_several_rectangles_of_tiles(rule: Rule) -> None:
    """Rectangles that are decided as a whole, some of them full, and ragged ones at both ends."""
    where = Grid(2 * (3 * ROWS) + 1, 2 * COLUMNS + 1, (2, 2))
    assert where.rows > 3 * ROWS and where.columns > COLUMNS
    check(rule, where, "rectangles")


IDS = torch.arange(30)


def test_offsets_before_the_first_position() -> None:
    """Positions below 0 are numbers like others; a lookup there is left to torch."""
    check(lambda b, h, q, k: (q + 3 >= k) & (q % 5 != 2), Grid(30, 30, (16, 16), q_offset=-7, kv_offset=-3), "negative")
    assert planes_of(lambda b, h, q, k: IDS[q] == k, Grid(30, 30, (16, 16), q_offset=-7), "negative") is None


@pytest.mark.parametrize("sizes", [(0, 30, 1, 1), (30, 0, 1, 1), (30, 30, 0, 1), (30, 30, 1, 0)], ids=str)
def test_empty_grid_has_no_planes(sizes: tuple[int, int, int, int]) -> None:
    q_len, kv_len, batch, heads = sizes
    assert planes_of(lambda b, h, q, k: q >= k, Grid(q_len, kv_len, (16, 16), B=batch, H=heads)) is None


def test_block_too_large_for_a_program() -> None:
    assert planes_of(lambda b, h, q, k: q >= k, Grid(30, 30, (2048, 16))) is None
    assert planes_of(lambda b, h, q, k: q >= k, Grid(30, 30, (16, 2048))) is None


def test_positions_too_far_for_sums() -> None:
    assert planes_of(lambda b, h, q, k: q >= k, Grid(30, 30, (16, 16), q_offset=1 << 30)) is None
    assert planes_of(lambda b, h, q, k: q >= k, Grid(30, 30, (16, 16), kv_offset=-(1 << 30))) is None


def test_more_batches_and_heads_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "_MOST_PAIRS", 5)
    where = Grid(30, 30, (16, 16), B=2, H=3)
    assert planes_of(lambda b, h, q, k: q - k >= b + h, where) is None
    check(lambda b, h, q, k: q - k >= h, where, "heads alone")


SHORT = torch.arange(20)
PAIRS = torch.arange(60).view(3, 20)
FAR = torch.tensor(3)
LEAVES: dict[str, Rule] = {
    "past the end": lambda b, h, q, k: SHORT[q + 1] >= k,
    "past the end in the last position alone": lambda b, h, q, k: SHORT[q - 9] >= k,
    "before the start": lambda b, h, q, k: SHORT[q - 21] >= k,
    "in one of two axes": lambda b, h, q, k: PAIRS[q // 6, q // 2] >= k,
    "of a lookup": lambda b, h, q, k: SHORT[SHORT[q // 2] * 2] >= k,
    "of a head": lambda b, h, q, k: PAIRS[h + 1, q // 2] >= k,
    "at a captured index": lambda b, h, q, k: PAIRS[FAR, q // 2] >= k,
}


@pytest.mark.parametrize("name", LEAVES)
def test_lookup_that_leaves_its_table(name: str) -> None:
    where = Grid(30, 30, (16, 16), H=3)

    def named(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return LEAVES[name](b, h, q, k)

    with pytest.raises(IndexError, match=r"^a rule: a lookup leaves its table; make the table longer, or clamp"):
        planes_of(named, where, "a rule")
    with pytest.raises(IndexError):
        true_codes(named, where)


def test_lookup_that_leaves_its_table_names_the_rule() -> None:
    def too_far(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return SHORT[q + 1] >= k

    kernels.finish()
    with pytest.raises(IndexError):
        create_block_mask(too_far, None, None, 30, 30, "cpu", 16)
    kernels.start()
    kernels.finish()
    with pytest.raises(IndexError):
        create_block_mask(too_far, None, None, 30, 30, "cpu", 16)


def test_lookup_behind_the_end_of_a_ragged_tile_is_none() -> None:
    """The last tiles have 14 and 10 positions more than there are queries and keys; no lookup is made for them."""
    exact = torch.arange(50)
    check(lambda b, h, q, k: exact[q + 0] >= exact[k + 16], Grid(50, 34, (32, 22)), "exact tables")


def test_a_table_on_another_device_is_left_to_torch() -> None:
    """A kernel would read its address on the wrong card."""
    graph, _ = recorded(lambda b, h, q, k: SHORT[q // 2] >= k, Grid(30, 30, (16, 16)))
    assert graph is not None
    with (
        mock.patch.object(planes, "located", return_value=torch.device("cuda", 1)),
        mock.patch.object(planes, "available", return_value=True),
        mock.patch.object(planes.kernels, "get", side_effect=AssertionError("a kernel is asked for")),
    ):
        assert planes.fused_planes(graph, Grid(30, 30, (16, 16)), "a rule") is None
