"""A recipe's rules on the whole q_len x kv_len matrix, for backends that take a mask or compute densely."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods.backends.base import Needs, Reason
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask
from attn_mods.recipe import Recipe
from attn_mods.score import Score


def cannot_be_traced(recipe: Recipe, needs: Needs) -> Reason | None:
    """Why a compiler cannot trace this dense computation: torch has no vmap for the gradient of a read in a table."""
    if not (needs.compiling and needs.parameter_gradients and recipe.score is not None):
        return None
    if not recipe.score.requires_grad():
        return None
    return Reason("inside torch.compile torch cannot trace gradients of a score's tensors; call it outside of it")


def dense_mask(mask: Mask, q_len: int, kv_len: int, device: torch.device) -> Tensor:
    """The mask's rule at every position, bool [B|1, H|1, q_len, kv_len], True = visible."""
    batch, heads = mask.batch_and_heads()
    b, h, q, kv = (torch.arange(size, device=device) for size in (batch, heads, q_len, kv_len))
    return evaluate_everywhere(mask.mask_mod(), b, h, q, kv)


def dense_score(score: Score, scores: Tensor, backend: str) -> Tensor:
    """The score's rule on scores [B, H, q_len, kv_len]."""
    b, h, q, kv = (torch.arange(size, device=scores.device) for size in scores.shape)
    return evaluate_everywhere(score.score_mod(backend), b, h, q, kv, scores)
