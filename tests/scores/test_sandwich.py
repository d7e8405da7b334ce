"""Sandwich: values by hand, the table, lengths."""

from __future__ import annotations

import math

import pytest
import torch

from attn_mods import reference, scores
from attn_mods.evaluation import evaluate_everywhere


def test_values_by_hand() -> None:
    positions = torch.tensor([0, 5])
    before = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    axes = (torch.arange(1), torch.arange(2), positions, positions)
    got = evaluate_everywhere(scores.Sandwich(num_heads=2, max_length=6, dimension=4).score_mod(), *axes, before)
    five = math.cos(5) + math.cos(0.05)
    expected = torch.tensor([[[2.0, five], [five, 2.0]]], dtype=torch.float64) / torch.tensor([4.0, 8.0])[:, None, None]
    torch.testing.assert_close(got[0], expected, rtol=1e-6, atol=1e-6)


def test_the_factor_of_eight_heads_is_one_over_the_number_of_the_head() -> None:
    score = scores.Sandwich(num_heads=8, max_length=1)
    position = torch.tensor([0])
    added = score.dense(torch.zeros(1, 8, 1, 1, dtype=torch.float64), position, position).flatten()
    torch.testing.assert_close(added, 64 / torch.arange(1, 9, dtype=torch.float64))


def test_longer_sequences_are_refused() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4)
    score = scores.Sandwich(num_heads=2, max_length=6)
    with pytest.raises(ValueError, match=r"^sandwich: positions must end at or before max_length = 6, got 7"):
        reference(q, k, k, score, q_offset=0)
    with pytest.raises(ValueError, match=r"^sandwich: positions must end at or before max_length = 6, got 8"):
        reference(q, q, q, score, q_offset=5)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"num_heads": 0, "max_length": 8}, ValueError, "num_heads must be >= 1"),
        ({"num_heads": 2, "max_length": 0}, ValueError, "max_length must be >= 1"),
        ({"num_heads": 2, "max_length": 8, "dimension": 7}, ValueError, "dimension must be even, got 7"),
        ({"num_heads": 2, "max_length": 8, "table": torch.ones(7)}, ValueError, "table must have 8 numbers, got 7"),
        ({"num_heads": 2.0, "max_length": 8}, TypeError, "num_heads must be an int"),
    ],
)
def test_errors(parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^sandwich: {message}"):
        scores.Sandwich(**parameters)  # type: ignore[arg-type]
