"""varlen: torch's varlen_attn, flash attention over packed sequences with no matrix of the mask.

Where one side alone is unbounded the lengths stand for it: the kernel's own word for that, a negative bound, is not
understood everywhere. Its lse has no gradient: what needs one is refused.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from attn_mods.backends.base import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.flash_form import Packed, band_of, bounds_of, form_limits, run_packed
from attn_mods.band import Band
from attn_mods.recipe import Recipe

NAME = "varlen_attn"


class Varlen(Backend):
    """torch.nn.attention.varlen.varlen_attn."""

    name = "varlen"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """Bands in half types on CUDA, without a score."""
        if needs.training and (needs.lse or recipe.sink is not None):
            return Reason("the lse of varlen_attn has no gradient, which a returned lse or a sink needs")
        if recipe.score is not None:
            return Reason(f"varlen_attn has no argument for the score {recipe.score.name}")
        refused = form_limits(NAME, recipe, shapes, dtype, device, needs)
        if refused is None and needs.compiling and band_of(recipe).cu_seqlens is not None:
            return Reason("the longest document cannot be read inside torch.compile")
        return refused

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Pack all samples behind each other, and unpack the result."""
        recipe, band = call.recipe, band_of(call.recipe)
        wants_lse = call.needs.lse or recipe.sink is not None
        window = window_of(band, call.shapes)

        def kernel(q: Tensor, k: Tensor, v: Tensor, cut: Packed) -> tuple[Tensor, Tensor | None]:
            return _varlen_attn(q, k, v, cut, recipe.scale, window, wants_lse)

        out, lse = run_packed(call, band, kernel)
        return call.finished(out, lse)


def _varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, cut: Packed, scale: float | None, window: tuple[int, int], wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    from torch.nn.attention.varlen import AuxRequest, varlen_attn  # the kernel's module is absent from some builds

    keywords: dict[str, Any] = {"scale": scale, "window_size": window}
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and "enable_gqa" in inspect.signature(varlen_attn).parameters:
        keywords["enable_gqa"] = True
    elif groups > 1:
        k, v = (each.repeat_interleave(groups, dim=1) for each in (k, v))
    if wants_lse:
        keywords["return_aux"] = AuxRequest(lse=True)
    result: Any = varlen_attn(q, k, v, cut.q_boundaries, cut.kv_boundaries, cut.q_longest, cut.kv_longest, **keywords)
    return result if wants_lse else (result, None)


def window_of(band: Band, shapes: Shapes) -> tuple[int, int]:
    """(left, right) in the kernel's own words."""
    if band.left is None and band.right is None:
        return -1, -1
    if band.left is None and band.right == 0 and shapes.q_len == shapes.kv_len:
        return -1, 0  # it has a kernel of its own for this
    left, right = bounds_of(band, shapes)
    everything = shapes.q_len + shapes.kv_len
    return everything if left is None else left, everything if right is None else right


VARLEN = Varlen()
