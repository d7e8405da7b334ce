"""eager: exact on every recipe, gradient and value."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.mask import Mask
from attn_mods.score import Score
from tests.attention_inputs import assert_matches_reference, inputs

RECIPES = {
    "plain": Recipe(),
    "causal": Recipe(masks.Causal()),
    "window and softcap": Recipe(masks.SlidingWindow(7), scores.Softcap(2.0)),
    "per head": Recipe(masks.SlidingWindow(torch.tensor([1, 2, 5, 30]))),
    "sink": Recipe(masks.Causal(), sink=torch.tensor([0.5, -1.0, 3.0, -math.inf])),
    "one sink": Recipe(sink=torch.tensor(0.3)),
    "scale": Recipe(masks.Causal(), scale=0.05),
    "bias": Recipe(masks.Causal(), scores.Alibi(num_heads=4)),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_reference(name: str, dtype: torch.dtype) -> None:
    tensors = inputs(dtype=dtype)
    tolerance = 1e-10 if dtype == torch.float64 and name not in ("bias",) else 1e-5
    assert_matches_reference(tensors, RECIPES[name], "eager", tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    tensors = inputs(300, dtype=dtype)
    out, lse = am.attention(*tensors, masks.Causal(), backend="eager", return_lse=True)
    expected, expected_lse = am.reference(*tensors, masks.Causal(), return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    rounding = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1.01 * rounding)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["causal", "window and softcap", "sink"])
def test_lse_is_natural_and_without_the_sink(name: str) -> None:
    tensors = inputs(9, 12)
    out, lse = am.attention(*tensors, RECIPES[name], q_offset=3, return_lse=True, backend="eager")
    expected, expected_lse = am.reference(*tensors, RECIPES[name], q_offset=3, return_lse=True)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sink", [None, torch.tensor([-math.inf, 0.0, 2.0, 90.0])], ids=["no sink", "sink"])
def test_empty_rows(sink: Tensor | None) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(12))
    empty = masks.Causal().shift(q=-5)
    out, lse = am.attention(q, k, v, Recipe(empty, sink=sink), return_lse=True, backend="eager")
    assert not out[..., :5, :].any()
    assert bool((lse[..., :5] == -math.inf).all())
    assert bool(lse[..., 5:].isfinite().all())
    (out.square().sum() + lse[..., 5:].sum()).backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert bool(tensor.grad.isfinite().all())
    assert q.grad is not None
    assert not q.grad[..., :5, :].any()


def test_gradients_equal_finite_differences() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(5, head_dim=3, batch=1, dtype=torch.float64))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    table = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, sink, table = tensors
        bias = scores.RelativeBiasTable(table) >> scores.Softcap(3.0)
        recipe = Recipe(masks.SlidingWindow(3), bias, sink=sink)
        return am.attention(q, k, v, recipe, return_lse=True, backend="eager")

    assert torch.autograd.gradcheck(run, (q, k, v, sink, table), atol=1e-6)


def test_gradients_of_sink_and_score_equal_the_references() -> None:
    tensors = inputs(20)
    found = []
    for compute in (am.attention, am.reference):
        sink = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
        bias = torch.linspace(-1, 1, 4).requires_grad_()
        q, k, v = (tensor.clone().requires_grad_() for tensor in tensors)
        compute(q, k, v, Recipe(masks.Causal(), scores.HeadBias(bias), sink=sink)).square().sum().backward()
        found.append([tensor.grad for tensor in (q, k, v, sink, bias)])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["k", "v"])
def test_c43_hidden_values_that_are_not_finite_reach_nobody(which: str, value: float) -> None:
    clean = inputs(12)
    q, k, v = (tensor.clone() for tensor in clean)
    {"k": k, "v": v}[which][0, 0, 8, 3] = value
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    out = am.attention(q, k, v, masks.SlidingWindow(3), backend="eager")
    expected = am.attention(*clean, masks.SlidingWindow(3), backend="eager")
    sees = torch.zeros(2, 4, 12, dtype=torch.bool)
    sees[0, :2, 8:11] = True
    torch.testing.assert_close(out[~sees], expected[~sees])
    if math.isnan(value):
        assert bool(out[sees].isnan().any(-1).all())
    out[~sees].sum().backward()
    assert q.grad is not None
    assert bool(q.grad[~sees].isfinite().all())


def test_visible_infinity_stays_infinite() -> None:
    q, k, v = inputs(6)
    v[:, :, 2, 0], v[:, :, 3, 0], v[:, :, 3, 1] = math.inf, -math.inf, -math.inf
    out = am.attention(q, k, v, masks.Causal(), backend="eager")
    assert bool((out[:, :, 2, 0] == math.inf).all())
    assert bool(out[:, :, 3:, 0].isnan().all())
    assert bool((out[:, :, 3:, 1] == -math.inf).all())


def test_user_rules() -> None:
    limit = torch.tensor([3, 9])

    def short(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx < limit[b]

    def louder(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * (1 + h)

    tensors = inputs(12)
    recipe = Recipe(Mask.from_mask_mod(short, B=2, frame="keys"), Score.from_score_mod(louder, H=4))
    assert_matches_reference(tensors, recipe, "eager")
