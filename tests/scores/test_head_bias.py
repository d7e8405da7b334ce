"""Head bias: only lse and a sink notice."""

from __future__ import annotations

import pytest
import torch

from attn_mods import reference, scores
from attn_mods.recipe import Recipe


def test_the_output_stays_and_lse_moves() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.tensor([0.5, -2.0], dtype=torch.float64)
    out, lse = reference(q, k, v, scores.HeadBias(bias), return_lse=True)
    plain_out, plain_lse = reference(q, k, v, return_lse=True)
    torch.testing.assert_close(out, plain_out)
    torch.testing.assert_close(lse, plain_lse + bias[:, None])


def test_a_sink_notices() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    bias, sink = torch.tensor([0.5, -2.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    with_bias = reference(q, k, v, Recipe(score=scores.HeadBias(bias), sink=sink))
    with_lower_sink = reference(q, k, v, Recipe(sink=sink - bias))
    torch.testing.assert_close(with_bias, with_lower_sink)


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"^head_bias: bias must be a float tensor, got 0.5"):
        scores.HeadBias(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^head_bias: bias must have 0 or 1 dimensions"):
        scores.HeadBias(torch.ones(1, 2, 1, 1))
