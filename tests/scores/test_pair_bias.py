"""Pair bias: index width, lengths, layouts."""

from __future__ import annotations

import pytest
import torch

from attn_mods import reference, scores


def table(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a14_a_table_beyond_32_bit_indices_is_refused() -> None:
    scores.PairBias(torch.empty(1, 1, 46_340, 46_340, device="meta")).score_mod(backend="flex_flash")
    too_large = scores.PairBias(torch.empty(1, 1, 46_341, 46_341, device="meta"))
    with pytest.raises(ValueError, match=r"^pair_bias: bias must have at most 2147483647 numbers .* 46341"):
        too_large.score_mod(backend="flex_flash")
    too_large.score_mod(backend="flex")
    too_large.score_mod(backend="eager")


def test_attention_by_hand() -> None:
    bias = table(2, 1, 5, 7)
    q, k, v = table(2, 3, 5, 4), table(2, 3, 7, 4), table(2, 3, 7, 4)
    expected = torch.softmax(q @ k.mT / 2 + bias, dim=-1) @ v
    torch.testing.assert_close(reference(q, k, v, scores.PairBias(bias)), expected)


def test_a_square_table_has_positions_of_one_sequence() -> None:
    assert scores.PairBias(table(1, 1, 7, 7)).frame == "self"
    assert scores.PairBias(table(1, 1, 5, 7)).frame == "cross"
    q, k = table(1, 1, 1, 4), table(1, 1, 7, 4)
    with pytest.raises(ValueError, match=r"^pair_bias: q_len != kv_len needs q_offset"):
        reference(q, k, k, scores.PairBias(table(1, 1, 7, 7)))


@pytest.mark.parametrize(("q_len", "kv_len", "what"), [(6, 7, "queries"), (5, 8, "keys")])
def test_positions_outside_of_the_table_are_refused(q_len: int, kv_len: int, what: str) -> None:
    q, k = table(1, 1, q_len, 4), table(1, 1, kv_len, 4)
    with pytest.raises(ValueError, match=f"^pair_bias: the {what} must end at or before position"):
        reference(q, k, k, scores.PairBias(table(1, 1, 5, 7)))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"^pair_bias: bias must have 4 dimensions"):
        scores.PairBias(table(2, 5, 5))
    with pytest.raises(TypeError, match=r"^pair_bias: bias must be a float tensor"):
        scores.PairBias(torch.ones(1, 1, 5, 5, dtype=torch.bool))
