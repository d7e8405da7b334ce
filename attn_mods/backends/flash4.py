"""flash4: FlashAttention-4 called directly, for bands, documents, softcaps and sinks.

From the package flash-attn-4. Its lse has a gradient; a sink is an argument of the kernel, unless the lse is wanted
too, which the kernel would return with the sink in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_mods.backends.base import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.flash_form import Packed, band_of, bounds_of, form_limits, run_dense, run_packed
from attn_mods.backends.packages import installed
from attn_mods.band import Band
from attn_mods.recipe import Recipe

MODULE = "flash_attn.cute"
UNTRIED = 8
"""Cards of up to this major compute capability were not tried."""


class Flash4(Backend):
    """flash_attn.cute.flash_attn_func and flash_attn_varlen_func."""

    name = "flash4"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """Bands in half types on CUDA; of scores softcap alone."""
        if recipe.score is not None and recipe.score.softcap() is None:
            return Reason(f"FlashAttention-4 has no argument for the score {recipe.score.name}")
        refused = form_limits("FlashAttention-4", recipe, shapes, dtype, device, needs)
        if refused is not None:
            return refused
        if needs.compiling:
            return Reason("FlashAttention-4 cannot be traced by torch.compile")
        if recipe.sink is not None and recipe.sink.dtype == torch.float64:
            return Reason("FlashAttention-4 has no sink in float64")
        if not installed(MODULE):
            return Reason("flash-attn-4 is not installed", package="flash-attn-4")
        if torch.cuda.get_device_capability(device)[0] <= UNTRIED:
            return Reason("FlashAttention-4 was tried on cards of compute capability 9.0 and later alone")
        return None

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """One call of the kernel, packed where there are documents."""
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

        recipe, shapes, band = call.recipe, call.shapes, band_of(call.recipe)
        keywords = _keywords(recipe, band, shapes) | {"return_lse": call.needs.lse}
        if recipe.sink is not None and not call.needs.lse:
            keywords["learnable_sink"] = recipe.sink.expand(shapes.q_heads).contiguous()

        def dense(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            out, lse = flash_attn_func(q, k, v, **keywords)
            return out, lse if call.needs.lse else None

        def packed(q: Tensor, k: Tensor, v: Tensor, cut: Packed) -> tuple[Tensor, Tensor | None]:
            boundaries = {"cu_seqlens_q": cut.q_boundaries, "cu_seqlens_k": cut.kv_boundaries}
            longest = {"max_seqlen_q": cut.q_longest, "max_seqlen_k": cut.kv_longest}
            out, lse = flash_attn_varlen_func(q, k, v, **boundaries, **longest, **keywords)
            return out, lse if call.needs.lse else None

        out, lse = run_dense(call, band, dense) if band.cu_seqlens is None else run_packed(call, band, packed)
        return call.finished(out, lse)


def _keywords(recipe: Recipe, band: Band, shapes: Shapes) -> dict[str, Any]:
    cap = None if recipe.score is None else recipe.score.softcap()
    keywords: dict[str, Any] = {"softmax_scale": recipe.scale, "window_size": bounds_of(band, shapes)}
    return keywords if cap is None else keywords | {"softcap": cap}


FLASH4 = Flash4()
