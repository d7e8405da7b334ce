"""nested: scaled_dot_product_attention on a jagged NestedTensor, one sequence a document.

For masks of documents, causal within each or not. Torch chooses among its kernels; the fused ones take it only where
it is said that no document is empty. The others are slow, and some of their gradients are infinite (torch 2.11).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attn_mods.backends.base import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.flash_form import Packed, band_of, form_limits, run_packed
from attn_mods.recipe import Recipe

NAME = "a jagged NestedTensor"


class Nested(Backend):
    """torch.nested.nested_tensor_from_jagged and scaled_dot_product_attention."""

    name = "nested"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """Documents in half types on CUDA, without lse, sink, score or window."""
        if needs.lse or recipe.sink is not None:
            return Reason("scaled_dot_product_attention returns no lse, which a sink needs too")
        if recipe.score is not None:
            return Reason(f"{NAME} has no argument for the score {recipe.score.name}")
        refused = form_limits(NAME, recipe, shapes, dtype, device, needs)
        if refused is not None:
            return refused
        band = band_of(recipe)
        if band.cu_seqlens is None:
            return Reason(f"{NAME} holds documents, and there are none")
        if band.left is not None or band.right not in (None, 0):
            return Reason(f"{NAME} has no window")
        return Reason(f"{NAME} cannot be made inside torch.compile") if needs.compiling else None

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """One sequence a document of each sample."""
        band, scale = band_of(call.recipe), call.recipe.scale
        groups = call.shapes.q_heads // call.shapes.kv_heads

        def kernel(q: Tensor, k: Tensor, v: Tensor, cut: Packed) -> tuple[Tensor, None]:
            k, v = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (k, v))
            offsets = torch.unique_consecutive(cut.q_boundaries).long()  # no document is empty, and torch is told so
            q, k, v = (
                torch.nested.nested_tensor_from_jagged(each, offsets, min_seqlen=1, max_seqlen=cut.q_longest).transpose(
                    1, 2
                )
                for each in (q, k, v)
            )
            out = scaled_dot_product_attention(q, k, v, is_causal=band.right is not None, scale=scale)
            return out.transpose(1, 2).values(), None

        return run_packed(call, band, kernel)


NESTED = Nested()
