"""flash3: FlashAttention-3 called directly, forward only.

From the package fa3-fwd, whose build has no backward kernel, no window and no float16: what is left is causal and full
attention in bfloat16, within documents or not, with or without a softcap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_mods.backends.base import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.flash_form import Packed, band_of, bounds_of, form_limits, run_dense, run_packed
from attn_mods.backends.packages import installed
from attn_mods.recipe import Recipe

MODULE = "fa3_fwd_interface"
HOPPER = 9


class Flash3(Backend):
    """flash_attn_func and flash_attn_varlen_func of fa3_fwd_interface."""

    name = "flash3"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """Causal and full attention in bfloat16 on Hopper, without gradients."""
        if needs.training:
            return Reason("this build of FlashAttention-3 has no backward kernel")
        if recipe.score is not None and recipe.score.softcap() is None:
            return Reason(f"FlashAttention-3 has no argument for the score {recipe.score.name}")
        refused = form_limits("FlashAttention-3", recipe, shapes, dtype, device, needs)
        if refused is not None:
            return refused
        if dtype != torch.bfloat16:
            return Reason(f"this build of FlashAttention-3 needs bfloat16, got {dtype}")
        if bounds_of(band_of(recipe), shapes) not in ((None, None), (None, 0)):
            return Reason("this build of FlashAttention-3 has no window, and aligns the last query with the last key")
        if needs.compiling:
            return Reason("FlashAttention-3 cannot be traced by torch.compile")
        if not installed(MODULE):
            return Reason("fa3-fwd is not installed", package="fa3-fwd")
        if torch.cuda.get_device_capability(device)[0] != HOPPER:
            return Reason("FlashAttention-3 is for Hopper cards")
        return None

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """One call of the kernel, packed where there are documents."""
        from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func

        recipe, band = call.recipe, band_of(call.recipe)
        wants_lse = call.needs.lse or recipe.sink is not None
        keywords: dict[str, Any] = {"softmax_scale": recipe.scale, "causal": band.right is not None}
        keywords["return_attn_probs"] = wants_lse
        cap = None if recipe.score is None else recipe.score.softcap()
        if cap is not None:
            keywords["softcap"] = cap

        def dense(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            result: Any = flash_attn_func(q, k, v, **keywords)
            return result if wants_lse else (result, None)

        def packed(q: Tensor, k: Tensor, v: Tensor, cut: Packed) -> tuple[Tensor, Tensor | None]:
            boundaries = cut.q_boundaries, cut.kv_boundaries, cut.q_longest, cut.kv_longest
            result: Any = flash_attn_varlen_func(q, k, v, *boundaries, **keywords)
            return result if wants_lse else (result, None)

        out, lse = run_dense(call, band, dense) if band.cu_seqlens is None else run_packed(call, band, packed)
        return call.finished(out, lse)


FLASH3 = Flash3()
