"""attention() on flex inside a user's torch.compile in its default mode: tables fit, and may be of other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, scores
from attn_mods.score import Score, UserScore
from attn_mods.user_rule import UserRule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENGTH = 500


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Each test begins with no size known."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(q: Tensor, k: Tensor, v: Tensor, recipe: Any, block_mask: Any) -> Tensor:
    """What a user compiles."""
    return am.attention(q, k, v, recipe, backend="flex", block_mask=block_mask)


def assert_trains(compiled: Any, part: Any, heads: int, head_dim: int) -> None:
    """Output and gradients of inputs are those of the reference, up to what a half type rounds."""
    recipe = Recipe.of(part)
    q, k, v = (torch.randn(1, heads, LENGTH, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    block_mask = None if recipe.mask is None else recipe.mask.block_mask(LENGTH, device="cuda")
    tensors = [each.clone().requires_grad_() for each in (q, k, v)]
    out = compiled(*tensors, recipe, block_mask)
    truth = [each.double().requires_grad_() for each in (q, k, v)]
    expected = am.reference(*truth, recipe)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    expected.backward(gradient.double())
    for tensor, true in zip(tensors, truth, strict=True):
        assert tensor.grad is not None
        assert true.grad is not None
        assert (tensor.grad - true.grad).norm() <= 2e-2 * true.grad.norm()


def table(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).cuda()


def parts_that_read_tables() -> dict[str, Any]:
    """By the distance of query and key, one and two of them."""
    row, other = table(2 * LENGTH), table(3 * LENGTH)
    return {
        "t5_bucket": scores.T5Bucket(table(4, 32)),
        "relative_bias_table": scores.RelativeBiasTable(table(4, 257)),
        "score": UserScore(lambda score, b, h, q_idx, kv_idx: score + row[kv_idx - q_idx]),
        "score of two": UserScore(
            lambda score, b, h, q_idx, kv_idx: score + row[kv_idx - q_idx] * other[q_idx + kv_idx]
        ),
        "mask": UserRule(lambda b, h, q_idx, kv_idx: (row[kv_idx - q_idx] > 0.3) | (q_idx == kv_idx)),
    }


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["t5_bucket", "relative_bias_table", "score", "score of two", "mask"])
def test_a_rule_that_reads_tables_fits(name: str, head_dim: int) -> None:
    assert_trains(torch.compile(layer, fullgraph=True), parts_that_read_tables()[name], heads=4, head_dim=head_dim)


def tables_of_other_sizes() -> dict[str, list[Score]]:
    """What one compiled function is called with, one after the other."""
    return {
        "t5_bucket": [scores.T5Bucket(table(4, 32), bidirectional=False, max_distance=reach) for reach in (64, 128)],
        "relative_bias_table": [scores.RelativeBiasTable(table(4, columns)) for columns in (65, 257)],
        "heads": [scores.RelativeBiasTable(table(heads, 65)) for heads in (4, 6)],
        "pair_bias": [scores.PairBias(table(1, heads, LENGTH, LENGTH)) for heads in (4, 6)],
    }


@pytest.mark.parametrize("name", ["t5_bucket", "relative_bias_table", "heads", "pair_bias"])
def test_tables_of_other_sizes(name: str) -> None:
    compiled = torch.compile(layer, fullgraph=True)
    for score in tables_of_other_sizes()[name]:
        assert_trains(compiled, score, heads=score.batch_and_heads()[1], head_dim=32)
