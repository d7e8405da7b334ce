"""KERPLE: values by hand, the bounds of the parameters, gradients at distance 0."""

from __future__ import annotations

import math

import pytest
import torch

from attn_mods import scores
from attn_mods.evaluation import evaluate_everywhere


def bias(form: str, r1: float, r2: float, distance: int) -> float:
    kerple = scores.Kerple(torch.tensor(r1), torch.tensor(r2), form=form)
    zero = torch.tensor([0])
    before = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    for i, j in ((distance, 0), (0, distance)):
        got = evaluate_everywhere(kerple.score_mod(), zero, zero, torch.tensor([i]), torch.tensor([j]), before).item()
        assert got == pytest.approx(kerple.dense(before, torch.tensor([i]), torch.tensor([j])).item(), rel=1e-6)
    return got


def test_values_by_hand() -> None:
    assert bias("log", 2.0, 0.5, 6) == pytest.approx(-2 * math.log(4))
    assert bias("power", 2.0, 0.5, 9) == pytest.approx(-6)
    assert bias("log", 2.0, 0.5, 0) == bias("power", 2.0, 0.5, 0) == 0


def test_parameters_act_within_the_bounds_of_the_authors() -> None:
    assert bias("log", -3.0, -1.0, 100) == pytest.approx(-0.01 * math.log(2))
    assert bias("power", -3.0, -1.0, 100) == pytest.approx(-0.01 * 100**0.01)
    assert bias("power", 1.0, 3.0, 10) == pytest.approx(-100)
    assert bias("log", 5.0, 7.0, 1) == pytest.approx(-5 * math.log(8))


@pytest.mark.parametrize("form", ["log", "power"])
def test_gradients_are_finite_at_distance_zero(form: str) -> None:
    r1, r2 = torch.tensor([0.5], requires_grad=True), torch.tensor([0.7], requires_grad=True)
    rule = scores.Kerple(r1, r2, form=form).score_mod()
    zero = torch.tensor([0])
    evaluate_everywhere(rule, zero, zero, zero, torch.arange(3), torch.zeros(1, 1, 1, 3)).sum().backward()
    assert r1.grad is not None and r1.grad.isfinite().all()
    assert r2.grad is not None and r2.grad.isfinite().all()


def test_errors() -> None:
    ones = torch.ones(2)
    with pytest.raises(ValueError, match=r"^kerple: form must be one of the two, got 'exp'"):
        scores.Kerple(ones, ones, form="exp")
    with pytest.raises(TypeError, match=r"^kerple: r2 must be a float tensor"):
        scores.Kerple(ones, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^kerple: the H of its parts must be 1 or equal, got 2 and 3"):
        scores.Kerple(ones, torch.ones(3)).batch_and_heads()
