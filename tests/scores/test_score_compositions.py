"""Scores made of scores: what they refuse, and positions outside of the documents."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attn_mods import Recipe, attention, masks, reference, scores
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.score import Score

CU_SEQLENS = torch.tensor([0, 6, 6, 16])


def inputs(q_len: int = 16, kv_len: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, q_len, 8, generator=generator)
    k, v = torch.randn(2, 1, 2, kv_len, 8, generator=generator)
    return q, k, v


def test_documents_of_queries_and_keys_are_as_many() -> None:
    with pytest.raises(ValueError, match=r"^per_document: cu_seqlens and cu_seqlens_kv must name the same number"):
        scores.Softcap(cap=1.0).per_document(CU_SEQLENS, torch.tensor([0, 6, 16]))


@pytest.mark.parametrize("run", [reference, attention], ids=["reference", "attention"])
def test_queries_beyond_the_documents_are_refused(run: object) -> None:
    assert callable(run)
    score = scores.Softcap(cap=1.0).per_document(CU_SEQLENS)
    with pytest.raises(ValueError, match=r"^softcap\.per_document: the queries must end at or before position 16"):
        run(*inputs(q_len=4), score, q_offset=13)
    with pytest.raises(ValueError, match=r"softcap\.per_document: cu_seqlens must end at the number of keys, 17"):
        run(*inputs(17, 17), score)


def test_the_score_inside_checks_each_document() -> None:
    score = scores.Sandwich(num_heads=2, max_length=9).per_document(CU_SEQLENS)
    with pytest.raises(ValueError, match=r"^sandwich: positions must end at or before max_length = 9, got 10"):
        reference(*inputs(), score)
    longer = scores.Sandwich(num_heads=2, max_length=10).per_document(CU_SEQLENS)
    assert bool(torch.isfinite(reference(*inputs(), longer)).all())


def test_boundaries_of_the_keys_are_named() -> None:
    score = scores.Softcap(cap=1.0).per_document(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 6]))
    assert score.frame == "cross"
    assert reference(*inputs(4, 6), score).shape == (1, 2, 4, 8)
    with pytest.raises(ValueError, match="cu_seqlens_kv must end at the number of keys, 7, got 6"):
        reference(*inputs(4, 7), score)


@pytest.mark.parametrize("score", [scores.Softcap(cap=1.0), scores.Alibi(num_heads=2)], ids=lambda score: score.name)
def test_positions_below_0_are_in_no_document(score: Score) -> None:
    moved = score.per_document(CU_SEQLENS).shift(q=-20, kv=-3)
    i, j = torch.arange(36), torch.arange(19)
    before = torch.randn(1, 2, 36, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ruled = evaluate_everywhere(moved.score_mod(), torch.arange(1), torch.arange(2), i, j, before)
    dense = moved.dense(before, i, j)
    torch.testing.assert_close(ruled, dense, rtol=1e-5, atol=1e-5)
    assert bool((dense[..., :20, :] == -math.inf).all())
    assert bool((dense[..., :3] == -math.inf).all())
    inside = score.per_document(CU_SEQLENS).dense(before[..., 20:, 3:], torch.arange(16), torch.arange(16))
    torch.testing.assert_close(dense[..., 20:, 3:], inside)


def test_a_moved_packed_recipe_of_eager_and_flex_is_the_reference() -> None:
    recipe = Recipe(masks.Causal(), scores.Alibi(num_heads=2)).per_document(CU_SEQLENS).shift(q=-4)
    q, k, v = inputs()
    expected = reference(q, k, v, recipe)
    for backend in ("eager", "flex"):
        with torch.no_grad():
            out = attention(q, k, v, recipe, backend=backend)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
