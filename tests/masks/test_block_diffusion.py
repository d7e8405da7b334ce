"""Block diffusion against a transcription of its three parts, token by token."""

from __future__ import annotations

import pytest

from attn_mods.masks import BlockDiffusion


@pytest.mark.parametrize(("length", "block_size"), [(4, 2), (6, 1), (7, 3), (5, 9), (1, 1)])
def test_the_three_parts_of_the_paper(length: int, block_size: int) -> None:
    dense = BlockDiffusion(length, block_size).dense(2 * length, 2 * length)
    for i in range(2 * length):
        for j in range(2 * length):
            q_noised, kv_noised = i < length, j < length
            q_block, kv_block = (i % length) // block_size, (j % length) // block_size
            block_diagonal = q_noised and kv_noised and q_block == kv_block
            offset_block_causal = q_noised and not kv_noised and q_block > kv_block
            block_causal = not q_noised and not kv_noised and q_block >= kv_block
            assert bool(dense[i, j]) == (block_diagonal or offset_block_causal or block_causal), (i, j)


def test_a_noised_token_never_sees_its_own_answer() -> None:
    dense = BlockDiffusion(length=12, block_size=4).dense(24, 24)
    assert not dense[:12, 12:].diagonal().any()


@pytest.mark.parametrize(
    ("length", "block_size", "error", "text"),
    [
        (0, 2, ValueError, "block_diffusion: length must be >= 1, got 0"),
        (4, 0, ValueError, "block_diffusion: block_size must be >= 1, got 0"),
        (4, 2.0, TypeError, "block_diffusion: block_size must be an int"),
    ],
)
def test_errors(length: int, block_size: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        BlockDiffusion(length, block_size)


def test_the_length_of_one_half_is_not_that_of_both() -> None:
    with pytest.raises(ValueError, match="keys must end at 16, got 8; pass length = kv_len / 2"):
        BlockDiffusion(length=8, block_size=2).place(8, 8)
