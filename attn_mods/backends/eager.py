"""eager: dense attention in plain torch, for training on a CPU, for float64, and where no kernel computes a recipe."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_mods.backends.base import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.dense import cannot_be_traced, dense_mask, dense_score
from attn_mods.recipe import Recipe
from attn_mods.sink import apply_sink


class Eager(Backend):
    """Every recipe, every gradient, every device; memory for several q_len x kv_len matrices.

    Half types are computed in float32. NaN and infinity in a key or value reach only the rows that see it.
    """

    name = "eager"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """All but kernel options, of which it has none, and invariance, which no matmul promises."""
        if needs.kernel_options:
            return Reason("it has no kernel_options")
        if needs.invariant:
            return Reason("its matmuls depend on the sizes")
        return cannot_be_traced(recipe, needs)

    def is_dense(self, recipe: Recipe, shapes: Shapes) -> bool:
        """Always."""
        return True

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Softmax over the visible keys and the sink, differentiable by autograd."""
        dtype = torch.promote_types(call.q.dtype, torch.float32)
        q, k, v = (tensor.to(dtype) for tensor in (call.q, call.k, call.v))
        k, v = (_per_query_head(tensor, q.shape[1]) for tensor in (k, v))
        visible = _visible(call)
        scores = _scores(call.recipe, q, k, visible)
        empty = (scores == -math.inf).all(-1, keepdim=True)
        highest = scores.amax(-1, keepdim=True).detach().masked_fill(empty, 0)
        weights = torch.exp(scores - highest)
        total = weights.sum(-1, keepdim=True).masked_fill(empty, 1)
        out = _weighted_values(weights / total, v, visible)
        lse = (highest + total.log()).masked_fill(empty, -math.inf).squeeze(-1)
        if call.recipe.sink is not None:
            out = apply_sink(out, lse, call.recipe.sink)
        return out.to(call.q.dtype), lse if call.needs.lse else None


def _per_query_head(tensor: Tensor, q_heads: int) -> Tensor:
    return tensor if tensor.shape[1] == q_heads else tensor.repeat_interleave(q_heads // tensor.shape[1], dim=1)


def _visible(call: Call) -> Tensor | None:
    if call.recipe.mask is None:
        return None
    return dense_mask(call.recipe.mask, call.q.shape[2], call.k.shape[2], call.q.device)


def _scores(recipe: Recipe, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if recipe.scale is None else recipe.scale
    if visible is not None and _may_hold_non_finite(k):
        # A product with a hidden NaN would reach the gradients of q through 0 * NaN.
        finite = k.isfinite()
        damaged = (~finite).any(-1)[:, :, None, :]
        scores = q @ k.where(finite, 0).transpose(-2, -1)
        scores = torch.where(damaged & visible, (q @ k.transpose(-2, -1)).detach(), scores)
    else:
        scores = q @ k.transpose(-2, -1)
    scores = scale * scores
    if recipe.score is not None:
        scores = dense_score(recipe.score, scores, "eager")
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def _weighted_values(weights: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    if visible is None or not _may_hold_non_finite(v):
        return weights @ v
    out = weights @ v.where(v.isfinite(), 0)
    seen = visible.to(v.dtype).expand(*weights.shape)
    for value, damaged in ((math.inf, v == math.inf), (-math.inf, v == -math.inf), (math.nan, v.isnan())):
        out = out + torch.where(seen @ damaged.to(v.dtype) > 0, value, 0.0)
    return out


def _may_hold_non_finite(tensor: Tensor) -> bool:
    """Whether hidden values need the careful path; a compiler cannot look, so it takes that path."""
    return torch.compiler.is_compiling() or not bool(tensor.isfinite().all())


EAGER = Eager()
