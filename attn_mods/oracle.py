"""The truth: dense attention in float64."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.call_checks import check_call, check_device, check_sizes, check_tensors
from attn_mods.mask import Mask, Offset
from attn_mods.preflight import check_user_functions
from attn_mods.recipe import Recipe
from attn_mods.score import Score


@overload
def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Dense attention in float64, differentiable by autograd.

    Args:
        q: Queries [B, Hq, q_len, D].
        k: Keys [B, Hkv, kv_len, D]; Hq is a multiple of Hkv.
        v: Values [B, Hkv, kv_len, Dv].
        recipe: What to compute; None = plain attention.
        q_offset: Absolute position of the first query; required for a "self" rule when the lengths differ.
        return_lse: Whether to return the log-sum-exp too.

    Returns:
        out, float64 [B, Hq, q_len, Dv]: 0 in rows that see nothing; with return_lse also lse, float64
        [B, Hq, q_len]: natural log, scores included, sink excluded, -inf in rows that see nothing.

    Raises:
        ValueError: Shapes, lengths or devices that do not fit the recipe.
        TypeError: Something that is no recipe, dtypes that do not fit.
    """
    recipe = Recipe.of(recipe, "reference")
    check_tensors(recipe.name, q=q, k=k, v=v)
    check_call(recipe.name, q, k, v)
    checks.boolean(recipe.name, "return_lse", return_lse, "pass True to get the log-sum-exp too")
    check_device(recipe, q.device)
    check_user_functions(recipe, q.device)
    recipe = recipe.sized(q.shape[0], q.shape[1])
    q_len, kv_len = q.shape[-2], k.shape[-2]
    placed = recipe.place(q_len, kv_len, q_offset)
    check_sizes(placed, q)
    check_device(placed, q.device)
    scores = dense_scores(q.double(), k.double(), placed)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    highest = scores.amax(-1, keepdim=True).detach().masked_fill(empty, 0)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    lse = (highest + torch.log(total.masked_fill(empty, 1))).masked_fill(empty, -math.inf).squeeze(-1)
    if placed.sink is not None:
        total = total + torch.exp(placed.sink.double().reshape(1, -1, 1, 1) - highest)
    values = v.double().repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    out = (weights / total.masked_fill(total == 0, 1)) @ values
    return (out, lse) if return_lse else out


def dense_scores(q: Tensor, k: Tensor, recipe: Recipe) -> Tensor:
    """Scores after scale, score and mask, [B, Hq, q_len, kv_len], -inf where hidden."""
    scale = 1 / math.sqrt(q.shape[-1]) if recipe.scale is None else recipe.scale
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = scale * (q @ keys.transpose(-2, -1))
    q_len, kv_len = scores.shape[-2:]
    if recipe.score is not None:
        i, j = (torch.arange(n, device=q.device) for n in (q_len, kv_len))
        scores = recipe.score.dense(scores, i, j)
    if recipe.mask is None:
        return scores
    return scores.masked_fill(~recipe.mask.dense(q_len, kv_len).to(q.device), -math.inf)
