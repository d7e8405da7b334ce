"""varlen: what is handed to the kernel, which a dense stand-in plays here, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen as torch_varlen

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import Needs, Shapes
from attn_mods.backends.base import Call
from attn_mods.backends.flash_form import empty_rows
from attn_mods.backends.varlen import VARLEN, window_of
from attn_mods.band import Band
from tests.attention_inputs import inputs

CUDA = torch.device("cuda")
SHAPES = Shapes(2, 4, 2, 40, 40, 32, 32)


def stand_in(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Any:
    """What the kernel documents, densely: a bound below 0 or beyond the keys is none, the last ones are aligned."""
    groups = q.shape[1] // k.shape[1]
    assert groups == 1 or enable_gqa
    out, lse = torch.zeros_like(q), torch.full((q.shape[1], q.shape[0]), math.nan)
    assert int(cu_seq_q.diff().max()) == max_q and int(cu_seq_k.diff().max()) == max_k
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    left, right = (math.inf if bound < 0 or bound >= max_k else bound for bound in window_size)
    bounds = zip(cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:], strict=True)
    for q_from, q_to, k_from, k_to in (map(int, each) for each in bounds):
        i = torch.arange(q_to - q_from)[:, None] + (k_to - k_from) - (q_to - q_from)
        j = torch.arange(k_to - k_from)
        kept = (j >= i - left) & (j <= i + right)
        keys, values = (each[k_from:k_to].repeat_interleave(groups, 1) for each in (k, v))
        weights = torch.einsum("qhd,khd->hqk", q[q_from:q_to], keys) * (scale or 1 / math.sqrt(q.shape[2]))
        weights = weights.masked_fill(~kept, -math.inf)
        lse[:, q_from:q_to] = weights.logsumexp(-1)
        out[q_from:q_to] = torch.einsum("hqk,khd->qhd", weights.softmax(-1), values)  # NaN where nothing is kept
    return out if return_aux is None else (out, lse)


RECIPES = {
    "plain": (Recipe(), 40, 40, None),
    "scale": (Recipe(scale=0.3), 40, 40, None),
    "causal": (Recipe(masks.Causal()), 40, 40, None),
    "causal, last queries": (Recipe(masks.Causal()), 7, 40, 33),
    "window": (Recipe(masks.SlidingWindow(5)), 40, 40, None),
    "window, last queries": (Recipe(masks.SlidingWindow(5)), 7, 40, 33),
    "window on both sides": (Recipe(masks.WindowSymmetric(3)), 40, 40, None),
    "left bound alone": (Recipe(masks.WindowAsymmetric(left=3, right=None)), 40, 40, None),
    "right bound alone": (Recipe(masks.WindowAsymmetric(left=None, right=2)), 40, 40, None),
    "documents": (Recipe(masks.Document.from_lengths([13, 0, 27])), 40, 40, None),
    "causal documents": (Recipe(masks.Document.from_lengths([13, 0, 27]) & masks.Causal()), 40, 40, None),
    "windowed documents": (Recipe(masks.Document.from_lengths([13, 27]) & masks.SlidingWindow(4)), 40, 40, None),
    "sink": (Recipe(masks.Causal(), sink=torch.tensor([0.0, 1.0, -1.0, 2.0])), 40, 40, None),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_kernel_gets_is_the_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_varlen, "varlen_attn", stand_in)
    recipe, q_len, kv_len, offset = RECIPES[name]
    q, k, v = inputs(q_len, kv_len)
    placed = recipe.place(q_len, kv_len, offset)
    call = Call(q, k, v, placed, Needs(lse=True))
    assert VARLEN.limits(placed, call.shapes, torch.bfloat16, CUDA, call.needs) is None
    out, lse = VARLEN.run(call)
    expected, expected_lse = am.reference(q, k, v, recipe, q_offset=offset, return_lse=True)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    assert lse is not None
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
    alone, none = VARLEN.run(Call(q, k, v, placed, Needs()))
    assert none is None
    assert torch.equal(alone, out)


@pytest.mark.parametrize(
    ("recipe", "needs", "dtype", "reason"),
    [
        (Recipe(), Needs(), torch.float32, "needs float16 or bfloat16"),
        (Recipe(masks.Causal(), scores.Softcap(5.0)), Needs(), torch.float16, "no argument for the score softcap"),
        (Recipe(masks.PrefixLm(5)), Needs(), torch.float16, "the mask prefix_lm is no band"),
        (Recipe(masks.Causal().shift(q=-3)), Needs(), torch.float16, "is no band"),
        (Recipe(masks.Causal().shift(kv=3)), Needs(), torch.float16, "negative bound for none"),
        (Recipe(), Needs(lse=True, input_gradients=True), torch.float16, "has no gradient"),
        (Recipe(sink=torch.zeros(4)), Needs(input_gradients=True), torch.float16, "has no gradient"),
        (Recipe(), Needs(kernel_options=True), torch.float16, "no kernel_options"),
        (Recipe(), Needs(invariant=True), torch.float16, "chooses how to split"),
        (Recipe(masks.Document.from_lengths([40])), Needs(compiling=True), torch.float16, "inside torch.compile"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_refused(recipe: Recipe, needs: Needs, dtype: torch.dtype, reason: str) -> None:
    refused = VARLEN.limits(recipe, SHAPES, dtype, CUDA, needs)
    assert refused is not None and reason in refused.text


@pytest.mark.parametrize(
    ("shapes", "device", "reason"),
    [
        (SHAPES, torch.device("cpu"), "does not run on cpu"),
        (Shapes(1, 1, 1, 8, 8, 32, 16), CUDA, "values as wide as keys"),
        (Shapes(1, 1, 1, 8, 8, 264, 264), CUDA, "at most 256"),
        (Shapes(1, 1, 1, 8, 8, 12, 12), CUDA, "a multiple of 8"),
    ],
    ids=str,
)
def test_refused_sizes(shapes: Shapes, device: torch.device, reason: str) -> None:
    refused = VARLEN.limits(Recipe(), shapes, torch.float16, device, Needs())
    assert refused is not None and reason in refused.text


def test_a_bound_that_more_queries_than_keys_move_is_refused() -> None:
    refused = VARLEN.limits(
        Recipe(masks.SlidingWindow(50)), Shapes(1, 1, 1, 60, 40, 8, 8), torch.float16, CUDA, Needs()
    )
    assert refused is not None and "beyond the keys" in refused.text


@pytest.mark.parametrize("q_len", [1, 5, 8, 13])
@pytest.mark.parametrize("kv_len", [1, 5, 8, 13])
@pytest.mark.parametrize("left", [None, 0, 2, 9])
@pytest.mark.parametrize("right", [None, 0, 2, 9])
def test_empty_rows(q_len: int, kv_len: int, left: int | None, right: int | None) -> None:
    shapes = Shapes(1, 1, 1, q_len, kv_len, 8, 8)
    i, j = torch.arange(q_len)[:, None], torch.arange(kv_len)
    low = -math.inf if left is None else -left
    high = math.inf if right is None else right
    none = ~((j - i >= low) & (j - i <= high)).any(1)
    found = empty_rows(Band(left, right), shapes, torch.device("cpu"))
    assert torch.equal(torch.zeros(q_len, dtype=torch.bool) if found is None else found, none)


def test_causal_of_equal_lengths_has_a_kernel_of_its_own() -> None:
    assert window_of(Band(None, 0), SHAPES) == (-1, 0)
    assert window_of(Band(None, 0), Shapes(1, 1, 1, 7, 40, 8, 8)) != (-1, 0)
