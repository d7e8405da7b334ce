"""Inputs of attention, and the comparison of what a backend computed with the float64 reference."""

from __future__ import annotations

import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe
from attn_mods.mask import Mask
from attn_mods.score import Score


def inputs(
    q_len: int = 40,
    kv_len: int | None = None,
    *,
    batch: int = 2,
    heads: int = 4,
    key_heads: int = 2,
    head_dim: int = 16,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k and v, two query heads a key head unless told otherwise."""
    kv_len = q_len if kv_len is None else kv_len
    q = torch.randn(batch, heads, q_len, head_dim, dtype=dtype)
    k = torch.randn(batch, key_heads, kv_len, head_dim, dtype=dtype)
    v = torch.randn(batch, key_heads, kv_len, value_dim or head_dim, dtype=dtype)
    return q, k, v


def assert_matches_reference(
    tensors: tuple[Tensor, Tensor, Tensor],
    recipe: Recipe | Mask | Score | None,
    backend: str = "auto",
    *,
    q_offset: int | Tensor | None = None,
    tolerance: float = 1e-5,
) -> None:
    """The backend's output is the float64 reference's, without NaN."""
    with torch.no_grad():
        out = am.attention(*tensors, recipe, q_offset=q_offset, backend=backend)
        expected = am.reference(*tensors, recipe, q_offset=q_offset)
    assert out.dtype == tensors[0].dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
