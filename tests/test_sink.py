"""The sink's formula and its autograd.Function, on a dense float64 kernel and against the float64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks
from attn_mods.mask import Mask
from attn_mods.sink import apply_sink, attention_with_sink, lse_with_sink
from tests.attention_inputs import inputs

LENGTH = 16
SINKS = {
    "per head": [0.7, -2.0, 30.0, 0.0],
    "one for all": [0.4],
    "none for some": [-math.inf, 1.0, -math.inf, -5.0],
    "huge": [200.0, -200.0, 0.0, 3.0],
}
MASKS = {"causal": masks.Causal(), "empty rows": masks.Causal().shift(q=-4)}


class DenseKernel:
    """Attention whose backward is written out, and rebuilds the weights from lse as flash kernels do."""

    def __init__(self, mask: Mask) -> None:
        self.visible = mask.dense(LENGTH, LENGTH)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        products = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return products.masked_fill(~self.visible, -math.inf)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        lse = self.scores(q, k).logsumexp(-1)
        return self.weights(q, k, lse) @ v, lse

    def weights(self, q: Tensor, k: Tensor, lse: Tensor) -> Tensor:
        return torch.exp(self.scores(q, k) - lse.masked_fill(lse == -math.inf, 0)[..., None])

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = self.weights(q, k, lse)
        row = (grad_out * out).sum(-1, keepdim=True)
        grad_scores = weights * (grad_out @ v.transpose(-2, -1) - row) / math.sqrt(q.shape[-1])
        return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ grad_out


def leaves(sink: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 4, LENGTH, 8, generator=generator, dtype=torch.float64)
    return tuple(tensor.requires_grad_() for tensor in (q, k, v, torch.tensor(SINKS[sink], dtype=torch.float64)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sink", SINKS)
def test_c41_function_equals_the_reference(sink: str, mask: str) -> None:
    weight = torch.randn(2, 4, LENGTH, 8, dtype=torch.float64)
    ours, truth = leaves(sink), leaves(sink)
    out, lse = attention_with_sink(DenseKernel(MASKS[mask]), *ours)
    recipe = Recipe(MASKS[mask], sink=truth[3])
    expected, expected_lse = am.reference(*truth[:3], recipe, return_lse=True)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(lse, expected_lse, atol=1e-12, rtol=1e-12)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    for name, mine, theirs in zip("qkvs", ours, truth, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sink", SINKS)
def test_c41_eager_equals_the_reference(sink: str, mask: str) -> None:
    ours, truth = leaves(sink), leaves(sink)
    out = am.attention(*ours[:3], Recipe(MASKS[mask], sink=ours[3]), backend="eager")
    expected = am.reference(*truth[:3], Recipe(MASKS[mask], sink=truth[3]))
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-12, rtol=1e-12)


def test_gradients_equal_finite_differences() -> None:
    kernel = DenseKernel(MASKS["empty rows"])
    arguments = leaves("per head")
    assert torch.autograd.gradcheck(lambda *tensors: attention_with_sink(kernel, *tensors)[0], arguments)


def test_lse_of_the_function_has_no_gradient() -> None:
    _, lse = attention_with_sink(DenseKernel(masks.Causal()), *leaves("per head"))
    assert not lse.requires_grad


def test_formula_equals_one_more_logit() -> None:
    q, k, v = inputs(LENGTH, key_heads=4, dtype=torch.float64)
    logits = DenseKernel(masks.Causal()).scores(q, k)
    sink = torch.tensor([0.7, -2.0, 5.0, -math.inf], dtype=torch.float64)
    column = sink.reshape(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    both = torch.cat([logits, column], -1)
    lse = logits.logsumexp(-1)
    torch.testing.assert_close(apply_sink(logits.softmax(-1) @ v, lse, sink), both.softmax(-1)[..., :-1] @ v)
    torch.testing.assert_close(lse_with_sink(lse, sink), both.logsumexp(-1))


def test_half_types_keep_their_dtype_and_float32_precision() -> None:
    out, lse = torch.randn(1, 2, 5, 8).bfloat16(), torch.randn(1, 2, 5)
    sink = torch.tensor([0.3, 1.0])
    mended = apply_sink(out, lse, sink)
    assert mended.dtype == torch.bfloat16
    share = torch.sigmoid(lse.double() - sink.double().reshape(1, 2, 1))[..., None]
    assert torch.equal(mended, (out.double() * share).to(torch.bfloat16))
