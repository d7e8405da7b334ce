"""sdpa_*: torch's scaled_dot_product_attention, held to one of its kernels.

A mask that is a Band without bounds, or bounded by the diagonal alone, is passed as such; every other mask as a bool
matrix, True = visible; an additive score as a float matrix. Two facts shape the call:

- ``is_causal`` aligns first query and first key, and some kernels refuse it for unequal lengths: it is used for equal
  lengths only.
- Not every kernel returns 0 for a row that sees nothing: such a row is shown every key, and its output set to 0, which
  makes its gradients exactly 0 too.

On a card two kernels read one key head for several query heads (``enable_gqa``). For the others key and value heads are
repeated in memory: with an expanded view the efficient kernel read wrong keys (pytorch#191937).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attn_mods.backends.base import Backend, Call, Needs, Reason, Runner, Shapes
from attn_mods.backends.dense import cannot_be_traced, dense_mask, dense_score
from attn_mods.recipe import Recipe

HALF = (torch.float16, torch.bfloat16)
GROUPED = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
"""The kernels that read one key head for several query heads on a card."""

Form = Literal["none", "causal", "dense"]
"""How a mask is passed: not at all, as ``is_causal``, as a matrix."""


class SDPA(Backend):
    """One kernel of scaled_dot_product_attention.

    Args:
        name: Name of the backend.
        kernel: The kernel torch is held to.
    """

    name: str  # type: ignore[misc]  # one class, four names

    def __init__(self, name: str, kernel: SDPBackend) -> None:
        self.name = name
        self.kernel = kernel

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """What no kernel of scaled_dot_product_attention does, then what this one does not."""
        if needs.lse:
            return Reason("scaled_dot_product_attention returns no lse")
        if recipe.sink is not None:
            return Reason("scaled_dot_product_attention has no sink and returns no lse to apply one")
        if needs.kernel_options:
            return Reason("scaled_dot_product_attention has no kernel_options")
        if needs.invariant:
            return Reason("scaled_dot_product_attention chooses its tiles by the sizes")
        if recipe.score is not None:
            if not recipe.score.additive:
                return Reason(f"the score {recipe.score.name} is not an added bias")
            if dtype in HALF and device.type != "cpu":
                return Reason(f"the bias {recipe.score.name} would be rounded to {dtype}")
        untraceable = cannot_be_traced(recipe, needs)
        if untraceable is not None:
            return untraceable
        return _kernel_limits(self.kernel, mask_form(recipe, shapes), shapes, dtype, device, needs)

    def is_dense(self, recipe: Recipe, shapes: Shapes) -> bool:
        """Whether a matrix is passed, or the math kernel makes one."""
        return self.kernel == SDPBackend.MATH or mask_form(recipe, shapes) == "dense"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Call scaled_dot_product_attention with only this kernel allowed."""
        form = mask_form(call.recipe, call.shapes)
        bias, empty = matrix_of(call, self.name) if form == "dense" else (None, None)
        grouped = self.reads_grouped_heads(call.q, call.k)
        q, k, v = _as_kernels_read(call.q, call.k, call.v, grouped)
        with sdpa_kernel(self.kernel):
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=bias, is_causal=form == "causal", scale=call.recipe.scale, enable_gqa=grouped
            )
        return out if empty is None else out.masked_fill(empty, 0), None

    def prepared(self, call: Call) -> Runner:
        """Without a matrix the one call, held to the kernel where torch would take another.

        Holding it costs the host as much as some kernels take.
        """
        form, scale = mask_form(call.recipe, call.shapes), call.recipe.scale
        if form == "dense":
            return super().prepared(call)
        is_causal, wanted = form == "causal", self.kernel.value
        grouped = self.reads_grouped_heads(call.q, call.k)
        attend = partial(scaled_dot_product_attention, is_causal=is_causal, scale=scale, enable_gqa=grouped)
        choose = partial(torch._fused_sdp_choice, is_causal=is_causal, scale=scale, enable_gqa=grouped)

        def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None]:
            q, k, v = _as_kernels_read(q, k, v, grouped)
            if choose(q, k, v) == wanted:
                return attend(q, k, v), None
            with sdpa_kernel(self.kernel):
                return attend(q, k, v), None

        return run

    def reads_grouped_heads(self, q: Tensor, k: Tensor) -> bool:
        """Whether the kernel is handed fewer key heads than query heads as they are."""
        return q.shape[1] != k.shape[1] and q.device.type == "cuda" and self.kernel in GROUPED


def _as_kernels_read(q: Tensor, k: Tensor, v: Tensor, grouped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A key head for each query head but where they are grouped, and a head's values next to each other."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and not grouped:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    return q, k, v


def mask_form(recipe: Recipe, shapes: Shapes) -> Form:
    """The cheapest exact way to pass the recipe's mask and score."""
    if recipe.score is not None:
        return "dense"
    if recipe.mask is None:
        return "none"
    band = recipe.mask.band()
    if band is None or band.cu_seqlens is not None:
        return "dense"
    unbounded_left = band.left is None or band.left >= shapes.q_len - 1
    unbounded_right = band.right is None or band.right >= shapes.kv_len - 1
    if unbounded_left and unbounded_right:
        return "none"
    return "causal" if unbounded_left and band.right == 0 and shapes.q_len == shapes.kv_len else "dense"


def matrix_of(call: Call, backend: str) -> tuple[Tensor, Tensor]:
    """The matrix to pass, with empty rows opened, and which rows are empty, bool [B|1, H|1, q_len, 1]."""
    shapes, recipe = call.shapes, call.recipe
    visible = None
    if recipe.mask is not None:
        visible = dense_mask(recipe.mask, shapes.q_len, shapes.kv_len, call.q.device)
    if recipe.score is None and visible is not None:
        empty = ~visible.any(-1, keepdim=True)
        return visible | empty, empty
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    bias = torch.zeros(shapes.batch, shapes.q_heads, shapes.q_len, shapes.kv_len, dtype=dtype, device=call.q.device)
    if recipe.score is not None:
        bias = dense_score(recipe.score, bias, backend)
    if visible is not None:
        bias = bias.masked_fill(~visible, -math.inf)
    empty = (bias == -math.inf).all(-1, keepdim=True)
    return bias.masked_fill(empty, 0), empty


def _kernel_limits(
    kernel: SDPBackend, form: Form, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
) -> Reason | None:
    if kernel == SDPBackend.MATH:
        return None
    if kernel == SDPBackend.FLASH_ATTENTION and device.type == "cpu":
        return _flash_on_cpu(form, shapes, needs)
    if device.type != "cuda":
        return Reason(f"this kernel does not run on {device.type}")
    if needs.parameter_gradients:
        return Reason("this kernel returns no gradient of the bias")
    if shapes.head_dim != shapes.value_dim:
        return Reason("this kernel needs values as wide as keys")
    if kernel == SDPBackend.EFFICIENT_ATTENTION:
        return _efficient(shapes, dtype)
    if dtype not in HALF:
        return Reason(f"this kernel needs float16 or bfloat16, got {dtype}")
    if form == "dense":
        return Reason("this kernel is handed no mask but is_causal at equal lengths")
    widest = 256 if kernel == SDPBackend.FLASH_ATTENTION else 128
    if shapes.head_dim > widest or shapes.head_dim % 8:
        return Reason(f"this kernel needs a head dimension of at most {widest}, a multiple of 8")
    return None


def _flash_on_cpu(form: Form, shapes: Shapes, needs: Needs) -> Reason | None:
    if shapes.head_dim != shapes.value_dim:
        return Reason("this kernel needs values as wide as keys")
    if needs.parameter_gradients and form == "dense":
        return Reason("this kernel returns no gradient of the bias")
    return None


def _efficient(shapes: Shapes, dtype: torch.dtype) -> Reason | None:
    if dtype not in (*HALF, torch.float32):
        return Reason(f"this kernel does not compute in {dtype}")
    multiple = 8 if dtype in HALF else 4
    if shapes.head_dim % multiple:
        return Reason(f"this kernel needs a head dimension that is a multiple of {multiple}")
    return None


SDPA_CUDNN = SDPA("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)
SDPA_FLASH = SDPA("sdpa_flash", SDPBackend.FLASH_ATTENTION)
SDPA_EFFICIENT = SDPA("sdpa_efficient", SDPBackend.EFFICIENT_ATTENTION)
SDPA_MATH = SDPA("sdpa_math", SDPBackend.MATH)
