"""BlockCausal: whole blocks are seen, the query's own included."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_a_query_sees_to_the_end_of_its_block() -> None:
    assert counts(masks.BlockCausal(4), 10) == [4, 4, 4, 4, 8, 8, 8, 8, 10, 10]


def test_blocks_of_one_are_causal() -> None:
    assert torch.equal(masks.BlockCausal(1).dense(9, 9), masks.Causal().dense(9, 9))
    band = masks.BlockCausal(1).band()
    assert (band.left, band.right) == (None, 0)
    assert masks.BlockCausal(2).band() is None
    assert masks.BlockCausal(torch.tensor(1)).band() is None


def test_denoising_the_last_block_of_a_cache() -> None:
    assert visible_keys(masks.BlockCausal(4), 4, 12, q_offset=8) == [list(range(12))] * 4


def test_blocks_that_start_after_a_prompt() -> None:
    prompt, block = 5, 4
    rest = -prompt % block
    rows = visible_keys(masks.BlockCausal(block).shift(q=rest, kv=rest), 11)
    assert [len(keys) for keys in rows] == [1, 5, 5, 5, 5, 9, 9, 9, 9, 11, 11]


def test_errors() -> None:
    with pytest.raises(ValueError, match="block_causal: block must be >= 1, got 0"):
        masks.BlockCausal(0)
