"""The float64 reference against formulas written out here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks, scores


def inputs(heads: int = 2, key_heads: int = 2, q_len: int = 16, kv_len: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, q_len, 8, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, key_heads, kv_len, 8, generator=generator, dtype=torch.float64)
    return q, k, v


def test_plain_attention_is_sdpa() -> None:
    q, k, v = inputs()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(am.reference(q, k, v), expected)


def test_grouped_heads_and_offset() -> None:
    q, k, v = inputs(heads=6, key_heads=2, q_len=3)
    visible = torch.ones(16, 16, dtype=torch.bool).tril()[13:]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    torch.testing.assert_close(am.reference(q, k, v, masks.Causal(), q_offset=13), expected)


def test_score_before_mask_and_scale_before_score() -> None:
    q, k, v = inputs()
    recipe = Recipe(mask=masks.Causal(), score=scores.Softcap(cap=1.5), scale=0.7)
    capped = 1.5 * torch.tanh(0.7 * (q @ k.mT) / 1.5)
    expected = capped.masked_fill(~torch.ones(16, 16).tril().bool(), -math.inf).softmax(-1) @ v
    torch.testing.assert_close(am.reference(q, k, v, recipe), expected)


def test_c41_sink_is_one_more_logit() -> None:
    q, k, v = inputs()
    sink = torch.tensor([0.7, -2.0])
    logits = (q @ k.mT / math.sqrt(8)).masked_fill(~torch.ones(16, 16).tril().bool(), -math.inf)
    with_sink = torch.cat([logits, sink.double().reshape(1, 2, 1, 1).expand(2, 2, 16, 1)], -1).softmax(-1)
    out, lse = am.reference(q, k, v, Recipe(mask=masks.Causal(), sink=sink), return_lse=True)
    torch.testing.assert_close(out, with_sink[..., :-1] @ v)
    torch.testing.assert_close(lse, logits.logsumexp(-1))


@pytest.mark.parametrize("sink", [None, torch.tensor([0.5, 1.0]), torch.tensor([-math.inf, 3.0])], ids=str)
def test_c39_empty_rows_are_zero_with_finite_gradients(sink: Tensor | None) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs())
    out, lse = am.reference(q, k, v, Recipe(mask=masks.Causal().shift(q=-5), sink=sink), return_lse=True)
    assert torch.equal(out[..., :5, :], torch.zeros_like(out[..., :5, :]))
    assert bool((lse[..., :5] == -math.inf).all())
    assert bool(torch.isfinite(lse[..., 5:]).all())
    out.square().sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert bool(torch.isfinite(tensor.grad).all())
    assert q.grad is not None
    assert not q.grad[..., :5, :].any()


def test_gradients_against_finite_differences() -> None:
    q, k, v = (tensor[:1, :, :5].clone().requires_grad_() for tensor in inputs())
    sink = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        recipe = Recipe(mask=masks.SlidingWindow(2).shift(q=-1), score=scores.Softcap(cap=2.0), sink=sink)
        out, lse = am.reference(q, k, v, recipe, return_lse=True)
        return out, lse[..., 1:]

    assert torch.autograd.gradcheck(run, (q, k, v, sink))


def test_parameters_under_torchs_transforms() -> None:
    q, k, v = inputs()
    biases = torch.randn(3, 2, dtype=torch.float64)

    def loss(bias: Tensor) -> Tensor:
        return am.reference(q, k, v, Recipe(masks.Causal(), scores.HeadBias(bias), sink=bias)).square().sum()

    gradients = [torch.autograd.grad(loss(bias.requires_grad_()), bias)[0] for bias in biases.unbind()]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(biases), torch.stack(gradients))
    torch.testing.assert_close(torch.func.vmap(loss)(biases), torch.stack([loss(bias) for bias in biases]))
    with pytest.raises(ValueError, match=r"head_bias: bias must be finite, or -inf .*, got a value of nan"):
        torch.func.grad(loss)(torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (2, 3, 16, 8), "v": (2, 3, 16, 8)}, "number of query heads must be a multiple of that of key heads"),
        ({"k": (1, 2, 16, 8), "v": (1, 2, 16, 8)}, "q, k and v must have the same batch size"),
        ({"v": (2, 2, 15, 8)}, "k and v must have the same heads and length"),
        ({"k": (2, 2, 16, 4)}, "q and k must have the same head dimension"),
        ({"q": (2, 16, 8)}, "must have 4 dimensions"),
        ({"q": (2, 2, 0, 8)}, "at least one query and one key, got q_len=0, kv_len=16"),
        ({"k": (2, 2, 0, 8), "v": (2, 2, 0, 8)}, "at least one query and one key, got q_len=16, kv_len=0"),
    ],
    ids=["heads", "batch", "lengths", "head dimension", "dimensions", "no queries", "no keys"],
)
def test_bad_shapes(change: dict[str, tuple[int, ...]], message: str) -> None:
    shapes = {"q": (2, 2, 16, 8), "k": (2, 2, 16, 8), "v": (2, 2, 16, 8)} | change
    with pytest.raises(ValueError, match=message):
        am.reference(*(torch.randn(shape) for shape in shapes.values()))


def test_parameters_must_fit_the_batch_and_heads() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="its parameters must have Hq = 2 as q has, or 1, got 3"):
        am.reference(q, k, v, masks.SlidingWindow(torch.tensor([1, 2, 3])))
    with pytest.raises(ValueError, match="its parameters must have B = 2 as q has, or 1, got 3"):
        am.reference(q, k, v, masks.Document.from_ids(torch.zeros(3, 16, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda score, b, h, q_idx: score, "a score_mod takes five arguments, got one that takes 4"),
        (lambda score, b, h, q_idx, kv_idx: q_idx >= kv_idx, "must return one float tensor value per pair"),
        (lambda score, b, h, q_idx, kv_idx: score + torch.ones(3), r"must return one float tensor .* shape \(3,\)"),
        (lambda score, b, h, q_idx, kv_idx: score if q_idx > kv_idx else -score, "as a Python condition"),
        (lambda score, b, h, q_idx, kv_idx: score + kv_idx.item(), "reads an index value in Python"),
    ],
    ids=["four arguments", "bool", "vector", "if", "item"],
)
def test_user_scores_that_are_none(score_mod: Any, message: str) -> None:
    q, k, v = inputs()
    for run in (am.reference, am.attention):
        with pytest.raises(TypeError, match=message):
            run(q, k, v, am.Score.from_score_mod(score_mod))


def test_a_tensor_or_function_is_no_recipe() -> None:
    q, k, v = inputs()
    for wrong in (torch.ones(16, 16), lambda b, h, q_idx, kv_idx: q_idx >= kv_idx):
        with pytest.raises(TypeError, match="the recipe must be a Recipe, Mask or Score"):
            am.reference(q, k, v, wrong)  # type: ignore[arg-type]
