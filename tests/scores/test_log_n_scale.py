"""Log-n scaling: SSMax, Qwen's form, the smallest n."""

from __future__ import annotations

import math

import pytest
import torch

from attn_mods import masks, reference, scores
from attn_mods.recipe import Recipe


def factors(score: scores.LogNScale, positions: list[int]) -> list[float]:
    i = torch.tensor(positions)
    return score.dense(torch.ones(1, 1, len(i), 1, dtype=torch.float64), i, torch.tensor([0])).flatten().tolist()


def test_positions_count_from_one() -> None:
    assert factors(scores.LogNScale(scaling=1.0), [0, 1, 7]) == pytest.approx([0, math.log(2), math.log(8)])
    assert factors(scores.LogNScale(scaling=0.5, bias=2.0), [0, 7]) == pytest.approx([2, 2 + math.log(8) / 2])


def test_smallest_n() -> None:
    assert factors(scores.LogNScale(minimum=2), [0, 1, 2]) == pytest.approx([math.log(2), math.log(2), math.log(3)])


def test_qwens_form_begins_beyond_the_training_length() -> None:
    score = scores.LogNScale(scaling=1 / math.log(2048), minimum=2048)
    assert factors(score, [0, 2047, 4095]) == pytest.approx([1, 1, math.log(4096) / math.log(2048)])


def test_scalable_softmax_is_a_power_of_n() -> None:
    q, k, v = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(3))
    out = reference(q, k, v, Recipe(mask=masks.Causal(), score=scores.LogNScale(scaling=0.43)))
    for i in range(6):
        powers = (i + 1) ** (0.43 * (q[0, 0, i] @ k[0, 0, : i + 1].T) / 2)
        torch.testing.assert_close(out[0, 0, i], (powers / powers.sum()) @ v[0, 0, : i + 1])


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"minimum": 0}, ValueError, "minimum must be >= 1, got 0"),
        ({"minimum": 1.5}, TypeError, "minimum must be an int"),
        ({"scaling": math.inf}, ValueError, "scaling must be finite in float32, got inf"),
        ({"bias": True}, TypeError, "bias must be a number, got True"),
        ({"scaling": torch.ones(2, 2)}, ValueError, "scaling must have 0 or 1 dimensions"),
        ({"scaling": torch.ones(2, dtype=torch.int64)}, TypeError, "scaling must be a float tensor"),
    ],
)
def test_errors(parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^log_n_scale: {message}"):
        scores.LogNScale(**parameters)  # type: ignore[arg-type]


def test_numbers_of_heads_must_agree() -> None:
    with pytest.raises(ValueError, match=r"^log_n_scale: the H of its parts must be 1 or equal, got 2 and 3"):
        scores.LogNScale(torch.ones(2), torch.ones(3)).batch_and_heads()
