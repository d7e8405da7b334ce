"""Forgetting attention: the product of gates, precision over long sequences, errors."""

from __future__ import annotations

import math

import pytest
import torch

from attn_mods import masks, reference, scores
from attn_mods.recipe import Recipe


def test_halving_gates_by_hand() -> None:
    score = scores.Forgetting(torch.full((1, 1, 4), math.log(0.5), dtype=torch.float64))
    positions = torch.arange(4)
    added = score.dense(torch.zeros(1, 1, 4, 4, dtype=torch.float64), positions, positions)[0, 0]
    expected = math.log(0.5) * (positions[:, None] - positions[None, :]).double()
    torch.testing.assert_close(added, expected)


def test_weights_are_multiplied_by_the_gates_between() -> None:
    gates = torch.rand(1, 1, 6, dtype=torch.float64)
    q, k, v = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(3))
    out = reference(q, k, v, Recipe(mask=masks.Causal(), score=scores.Forgetting(gates.log())))
    for i in range(6):
        kept = torch.stack([gates[0, 0, j + 1 : i + 1].prod() for j in range(i + 1)])
        weights = kept * torch.exp(q[0, 0, i] @ k[0, 0, : i + 1].T / 2)
        torch.testing.assert_close(out[0, 0, i], (weights / weights.sum()) @ v[0, 0, : i + 1])


def test_neighbours_keep_float32_precision_at_the_end_of_a_long_sequence() -> None:
    length = 200_000
    gates = torch.nn.functional.logsigmoid(torch.randn(1, 1, length, generator=torch.Generator().manual_seed(0)))
    rule = scores.Forgetting(gates).score_mod()
    zero = torch.tensor(0)
    for distance in (1, 5, 50):
        i = torch.tensor(length - 1)
        got = rule(torch.tensor(0.0), zero, zero, i, i - distance)
        assert got.dtype == torch.float32
        expected = gates[0, 0, length - distance :].double().sum().item()
        assert got.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_position_without_a_gate_is_refused() -> None:
    q, k = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 5, 4)
    with pytest.raises(ValueError, match=r"^forgetting: the keys must end within the 4 gates, got 5"):
        reference(q, k, k, scores.Forgetting(torch.zeros(1, 1, 4)), q_offset=0)
    with pytest.raises(ValueError, match=r"^forgetting: the queries must end within the 5 gates, got 6"):
        reference(q, k, k, scores.Forgetting(torch.zeros(1, 1, 5)), q_offset=4)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"^forgetting: log_gates must be <= 0, got up to 0.5"):
        scores.Forgetting(torch.full((1, 1, 4), 0.5))
    with pytest.raises(ValueError, match=r"^forgetting: log_gates must have 3 dimensions"):
        scores.Forgetting(torch.zeros(1, 4))
    with pytest.raises(TypeError, match=r"^forgetting: log_gates must be a float tensor"):
        scores.Forgetting(torch.zeros(1, 1, 4, dtype=torch.int64))
