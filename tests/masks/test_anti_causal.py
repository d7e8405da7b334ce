"""AntiCausal: what only it promises."""

import torch

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_is_causal_on_the_reversed_sequence() -> None:
    assert torch.equal(masks.AntiCausal().dense(9, 9).flip(0, 1), masks.Causal().dense(9, 9))


def test_counts_fall_to_the_query_itself() -> None:
    assert counts(masks.AntiCausal(), 5) == [5, 4, 3, 2, 1]


def test_a_query_past_the_last_key_sees_nothing() -> None:
    assert visible_keys(masks.AntiCausal(), 4, 2, q_offset=0) == [[0, 1], [1], [], []]


def test_band_is_what_flash_attention_calls_0_and_unbounded() -> None:
    band = masks.AntiCausal().band()
    assert (band.left, band.right, band.cu_seqlens) == (0, None, None)
