"""provenance and block_mask_check: lists that were built, changed under the caller, or made by somebody else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import attn_mods as am
from attn_mods import masks, scores
from attn_mods.provenance import belongs_to, is_current, is_known, remember
from tests.attention_inputs import inputs


def near(window: Any) -> Any:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx - kv_idx >= 0) & (q_idx - kv_idx < window)

    return rule


def emptied(lists: BlockMask) -> BlockMask:
    """The same rule, and lists without the blocks of the last row."""
    counts, full_counts = lists.kv_num_blocks.clone(), lists.full_kv_num_blocks.clone()
    counts[..., -1], full_counts[..., -1] = 0, 0
    return BlockMask.from_kv_blocks(
        counts,
        lists.kv_indices,
        full_counts,
        lists.full_kv_indices,
        lists.BLOCK_SIZE,
        lists.mask_mod,
        lists.seq_lengths,
    )


def test_what_is_remembered() -> None:
    window = torch.tensor(5)
    mask = masks.SlidingWindow(window)
    lists = mask.block_mask(300)
    assert is_known(lists)
    assert is_current(lists)
    assert belongs_to(lists, mask.key())
    window.fill_(6)
    assert not is_current(lists)
    assert not belongs_to(lists, mask.key())
    foreign = create_block_mask(near(5), None, None, 300, 300, device="cpu")
    assert not is_known(foreign)
    remember(foreign)
    assert is_current(foreign)


@pytest.mark.parametrize("recipe", [None, scores.Softcap(2.0)], ids=["bare", "with a score"])
@pytest.mark.parametrize("made_by", ["create_block_mask", "mask.block_mask"])
def test_stale_lists_that_are_the_mask(recipe: Any, made_by: str) -> None:
    window = torch.tensor(2)
    if made_by == "create_block_mask":
        lists = am.create_block_mask(near(window), None, None, 384, 384, device="cpu")
    else:
        lists = masks.SlidingWindow(window).block_mask(384)
    am.explain(*inputs(384), recipe, block_mask=lists)
    window.fill_(384)
    with pytest.raises(ValueError, match="block_mask must be as new as its rule"):
        am.explain(*inputs(384), recipe, block_mask=lists)


def test_lists_of_the_same_rule_that_lack_a_row() -> None:
    mask = masks.Causal()
    foreign = emptied(create_block_mask(mask.mask_mod(), None, None, 384, 384, device="cpu"))
    with pytest.raises(
        ValueError, match="causal: block_mask must be built for this mask as it is now, got other blocks"
    ):
        am.attention(*inputs(384), mask, block_mask=foreign)


@pytest.mark.parametrize("size", [128, (64, 32)], ids=str)
@pytest.mark.parametrize("separate_full_blocks", [True, False])
def test_torchs_lists_at_any_block_size_are_taken(size: Any, separate_full_blocks: bool) -> None:
    mask = masks.Causal()
    foreign = mask.block_mask(300, block_size=size, separate_full_blocks=separate_full_blocks)
    made = BlockMask.from_kv_blocks(
        foreign.kv_num_blocks,
        foreign.kv_indices,
        foreign.full_kv_num_blocks,
        foreign.full_kv_indices,
        foreign.BLOCK_SIZE,
        mask.mask_mod(),
        foreign.seq_lengths,
    )
    assert not is_known(made)
    am.explain(*inputs(300), mask, block_mask=made)
    assert belongs_to(made, mask.key())


def test_a_block_listed_twice() -> None:
    mask = masks.Full()
    lists = mask.block_mask(256)
    counts, indices = torch.ones_like(lists.kv_num_blocks), torch.zeros_like(lists.kv_indices)
    twice = BlockMask.from_kv_blocks(
        counts, indices, lists.full_kv_num_blocks, lists.full_kv_indices, lists.BLOCK_SIZE, mask.mask_mod()
    )
    with pytest.raises(ValueError, match="got other blocks"):
        am.explain(*inputs(256), mask, block_mask=twice)


def test_an_equal_mask_takes_the_lists() -> None:
    lists = masks.SlidingWindow(torch.tensor(5)).block_mask(300)
    am.explain(*inputs(300), masks.SlidingWindow(torch.tensor(5)), block_mask=lists)
    with pytest.raises(ValueError, match="block_mask must be built for this mask as it is now"):
        am.explain(*inputs(300), masks.SlidingWindow(torch.tensor(6)), block_mask=lists)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        window = torch.tensor(2)
        mask = masks.SlidingWindow(window)
        lists = mask.block_mask(384)
        tensors = inputs(384)
        for _ in range(2):
            out = am.attention(*tensors, mask, block_mask=lists, backend="eager")
        torch.testing.assert_close(out.double(), am.reference(*tensors, mask), atol=1e-5, rtol=1e-5)
        am.explain(*tensors, block_mask=lists)
        window.fill_(384)
        with pytest.raises(ValueError, match="sliding_window: block_mask must be built for this mask as it is now"):
            am.attention(*tensors, mask, block_mask=lists)
        with pytest.raises(ValueError, match="block_mask must be as new as its rule"):
            am.attention(*tensors, block_mask=lists)


def test_bare_lists_of_one_sample_for_a_rule_per_sample() -> None:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (b == 0) | (q_idx == kv_idx)

    lists = am.create_block_mask(rule, None, None, 40, 40, device="cpu")
    with pytest.raises(ValueError, match="block_mask must have B = 2, the rule depends on it, got 1"):
        am.attention(*inputs(40), block_mask=lists)
    am.explain(*inputs(40, batch=1), block_mask=lists)
