"""The comparisons that other tests rest on must themselves notice every kind of difference."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from attn_mods.tiles import EMPTY, FULL, MIXED, UNKNOWN, Grid, States
from tests.block_mask_equality import assert_same_block_mask, assert_sound, assert_well_formed, dense_truth, tile_truth

HAS_WRITE_ORDER = "compute_dq_write_order" in inspect.signature(create_block_mask).parameters


def window(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 5 + 3 * h)


def expected_block_mask() -> Any:
    return create_block_mask(window, 2, 2, 30, 30, device="cpu", BLOCK_SIZE=(4, 4))


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """A copy of the expected BlockMask in which one tensor is another."""
    block_mask = copy.copy(expected_block_mask())
    setattr(block_mask, name, change(getattr(block_mask, name).clone()))
    return block_mask


def with_entry(row: tuple[int, ...], value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[row] = value
        return tensor

    return change


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    """The first two indices of one row in the other order."""
    tensor[1, 0, 5, :2] = tensor[1, 0, 5, :2].flip(0)
    return tensor


COUNTS = ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks")
INDICES = ("kv_indices", "full_kv_indices", "q_indices", "full_q_indices")
DIFFERENCES = {
    **{f"{name}, one count": (name, with_entry((1, 1, 4), 7)) for name in COUNTS},
    **{f"{name}, dtype": (name, lambda tensor: tensor.long()) for name in (*COUNTS, *INDICES)},
    **{f"{name}, heads dropped": (name, lambda tensor: tensor[:, :1]) for name in (*COUNTS, *INDICES)},
    **{f"{name}, absent": (name, lambda tensor: None) for name in ("full_kv_num_blocks", "full_kv_indices")},
    "kv_indices, one index": ("kv_indices", with_entry((1, 0, 5, 1), 3)),
    "q_indices, one index": ("q_indices", with_entry((0, 1, 2, 0), 7)),
    "full_kv_indices, one index": ("full_kv_indices", with_entry((0, 1, 5, 0), 2)),
    "kv_indices, order": ("kv_indices", swapped),
    "kv_indices, narrower": ("kv_indices", lambda tensor: tensor[..., :-1]),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_changed_list_is_noticed(difference: str) -> None:
    name, change = DIFFERENCES[difference]
    assert_same_block_mask(expected_block_mask(), expected_block_mask())
    with pytest.raises(AssertionError, match=name):
        assert_same_block_mask(changed(name, change), expected_block_mask())


def test_what_stands_behind_the_count_is_not_compared() -> None:
    block_mask = changed("kv_indices", with_entry((0, 0, 0, 7), 99))
    assert block_mask.kv_num_blocks[0, 0, 0] < 8
    assert_same_block_mask(block_mask, expected_block_mask())


@pytest.mark.parametrize(
    ("name", "value"),
    [("BLOCK_SIZE", (4, 8)), ("seq_lengths", (30, 31)), ("mask_mod", lambda b, h, q_idx, kv_idx: True)],
)
def test_a_changed_attribute_is_noticed(name: str, value: object) -> None:
    block_mask = copy.copy(expected_block_mask())
    setattr(block_mask, name, value)
    with pytest.raises(AssertionError, match=name):
        assert_same_block_mask(block_mask, expected_block_mask())


def write_order_block_mask() -> Any:
    return create_block_mask(window, 2, 2, 30, 30, device="cpu", BLOCK_SIZE=(4, 4), compute_dq_write_order=True)


@pytest.mark.skipif(not HAS_WRITE_ORDER, reason="needs torch 2.13: compute_dq_write_order")
def test_a_changed_write_order_is_noticed() -> None:
    expected, changed_mask = write_order_block_mask(), copy.copy(write_order_block_mask())
    assert_same_block_mask(changed_mask, expected)
    with pytest.raises(AssertionError, match="dq_write_order"):
        assert_same_block_mask(expected_block_mask(), expected)
    changed_mask.dq_write_order = with_entry((1, 0, 5, 0), 7)(expected.dq_write_order.clone())
    with pytest.raises(AssertionError, match=r"dq_write_order\[1, 0, 5\]"):
        assert_same_block_mask(changed_mask, expected)


def test_full_lists_where_torch_has_none_are_noticed() -> None:
    expected = copy.copy(expected_block_mask())
    for name in ("full_kv_num_blocks", "full_kv_indices", "full_q_num_blocks", "full_q_indices"):
        setattr(expected, name, None)
    with pytest.raises(AssertionError, match="full_kv_num_blocks: got a tensor, expected None"):
        assert_same_block_mask(expected_block_mask(), expected)


@pytest.mark.parametrize(
    ("row", "count", "complaint"),
    [
        ([0, 2, 1], 3, "ascend"),
        ([0, 1, 1], 3, "ascend"),
        ([0, 1, 4], 3, "outside"),
        ([-1, 0, 1], 3, "outside"),
        ([0, 1, 2], 4, "fit"),
    ],
)
def test_malformed_lists_are_noticed(row: list[int], count: int, complaint: str) -> None:
    counts, indices = torch.tensor([[[count]]]), torch.tensor([[[row]]])
    with pytest.raises(AssertionError, match=complaint):
        assert_well_formed("kv_indices", counts, indices, block_count=4)


def test_dense_truth_is_torchs() -> None:
    table = torch.tensor([[3, 9], [5, 1]])

    def rule(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (table[b][h] > kv_idx) & (q_idx >= kv_idx)

    truth = dense_truth(rule, 2, 2, 7, 6)
    assert torch.equal(truth, create_mask(rule, 2, 2, 7, 6, "cpu"))
    assert truth.sum((-2, -1)).tolist() == [[18, 27], [25, 7]]


def test_wrong_claims_are_noticed() -> None:
    """Each of the claims EMPTY, FULL and MIXED is refused on each tile where it is false, and only there."""
    grid = Grid(10, 7, (4, 4), B=1, H=2)
    truth = dense_truth(window, 1, 2, 10, 7)
    anywhere, everywhere = tile_truth(truth, (4, 4))
    right = torch.where(everywhere, FULL, torch.where(anywhere, MIXED, EMPTY)).to(torch.uint8)
    assert right.shape == (1, 2, 3, 2)
    assert set(right.unique().tolist()) == {EMPTY, FULL, MIXED}
    assert_sound(States(right), truth, grid)
    refused = 0
    for tile in torch.cartesian_prod(*(torch.arange(size) for size in right.shape)).tolist():
        for claim in (EMPTY, FULL, MIXED, UNKNOWN):
            codes = right.clone()
            codes[tuple(tile)] = claim
            if claim in (int(right[tuple(tile)]), UNKNOWN):
                assert_sound(States(codes), truth, grid)
            else:
                refused += 1
                with pytest.raises(AssertionError, match="is called"):
                    assert_sound(States(codes), truth, grid)
    assert refused == 2 * right.numel()


def test_a_claim_for_head_zero_is_not_one_for_all_heads() -> None:
    grid = Grid(12, 12, (4, 4), B=1, H=2)
    truth = dense_truth(window, 1, 2, 12, 12)
    anywhere, everywhere = tile_truth(truth, (4, 4))
    codes = torch.where(everywhere, FULL, torch.where(anywhere, MIXED, EMPTY)).to(torch.uint8)
    with pytest.raises(AssertionError, match=r"tile \[0, 1"):
        assert_sound(States(codes[:, :1]), truth, grid)
