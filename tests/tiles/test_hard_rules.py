"""The rules written by hand, against torch: claims true, lists equal."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

from attn_mods.block_mask import create_block_mask
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, analyse, tile_states
from tests.block_mask_equality import assert_sound, dense_truth, tile_truth
from tests.tiles.comparison import Calculus, build, compare
from tests.tiles.hard_rules import REFUSED, RULES, hard_case

CALCULUS = Calculus(create_block_mask, tile_states, Grid)


@pytest.mark.parametrize("name", RULES)
def test_hard_rule(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        counts = compare(hard_case(name), CALCULUS)
    assert counts["compared"] == 1, "torch refuses this rule"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_rule(name: str) -> None:
    case = hard_case(name)
    assert isinstance(build(torch_create_block_mask, case), Exception), "torch accepts this rule"
    assert isinstance(build(create_block_mask, case), Exception), f"torch refuses this rule:\n{case}"


@pytest.mark.parametrize("offsets", [(5, 0), (0, 3), (11, 40), (-7, 1)], ids=str)
def test_positions_count_from_the_offsets(offsets: tuple[int, int]) -> None:
    """A grid with offsets is the same rule at shifted positions; rules with tables are left out: they are too short."""
    q_offset, kv_offset = offsets
    names = [name for name, (_, tables, _) in RULES.items() if not tables]
    for name in names:
        case = hard_case(name)
        rule = case.rule

        def shifted(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return rule(b, h, q_idx + q_offset, kv_idx + kv_offset)  # noqa: B023 - used within the loop

        truth = dense_truth(shifted, case.B, case.H, case.q_len, case.kv_len)
        grid = Grid(
            case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H, q_offset=q_offset, kv_offset=kv_offset
        )
        try:
            assert_sound(tile_states(rule, grid), truth, grid)
        except AssertionError as error:
            raise AssertionError(f"{name}, offsets {offsets}: {error}") from error
        anywhere, everywhere = tile_truth(truth, case.block_size)
        expected = torch.where(everywhere, FULL, torch.where(anywhere, MIXED, EMPTY)).to(torch.uint8)
        codes = analyse(rule, grid).states.codes.expand_as(expected)
        assert torch.equal(codes, expected), f"{name}, offsets {offsets}"
    assert len(names) >= 60
