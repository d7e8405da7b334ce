"""flex_flash: compiled flex_attention on the FlashAttention-4 kernel, which skips blocks and runs any rule.

From the package flash-attn-4 (flex_attention's BACKEND="FLASH"). Five facts shape it:

- The kernel holds lengths and captured numbers as constants, and torch refuses symbols: each of them has a plan.
- Its backward takes no gradient of lse, and none of what a rule captures.
- With grouped heads its backward hands a score's rule other heads and positions than its forward (4.0.0b36).
- torch 2.11 takes its lse for a logarithm to base 2, which it is not, and scales it by ln 2.
- It ignores the lists of a BlockMask whose rule keeps everything: one that was handed in without a mask is refused.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attn_mods.backends.base import Call, Needs, Reason, Shapes
from attn_mods.backends.flash4 import MODULE, UNTRIED
from attn_mods.backends.flash_form import HALF
from attn_mods.backends.flash_kernel import mend_flash_kernel
from attn_mods.backends.flash_operations import reads_positions, unseen_in
from attn_mods.backends.flex import TUNED_MODE, Flex, plan_key
from attn_mods.backends.packages import installed
from attn_mods.backends.plan import Plan, plan_for
from attn_mods.bare_block_mask import Listed
from attn_mods.function_state import leaves
from attn_mods.recipe import Recipe

WIDEST = 128
FEWEST_QUERIES = 2
"""A single query goes to torch's decoding kernel, which is another backend's."""

SCALES_LSE = "stats_are_log2" not in inspect.getsource(flex_attention)


class FlexFlash(Flex):
    """torch.compile(flex_attention) with BACKEND="FLASH"."""

    name = "flex_flash"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """All recipes in half types on CUDA whose gradients the kernel has."""
        if device.type != "cuda":
            return Reason(f"flex_attention has no FLASH kernel on {device.type}")
        if dtype not in HALF:
            return Reason(f"the FLASH kernel needs float16 or bfloat16, got {dtype}")
        if max(shapes.head_dim, shapes.value_dim) > WIDEST or shapes.head_dim % 8 or shapes.value_dim % 8:
            return Reason(f"the FLASH kernel needs head dimensions of at most {WIDEST}, multiples of 8")
        if shapes.q_len < FEWEST_QUERIES:
            return Reason("the FLASH kernel is not for a single query")
        if needs.invariant or needs.kernel_options:
            return Reason("the FLASH kernel has no kernel_options")
        if needs.compiling:
            return Reason("inside torch.compile lengths may be symbols, which the FLASH kernel does not take")
        if needs.training and (needs.lse or recipe.sink is not None):
            return Reason("the lse of the FLASH kernel has no gradient, which a returned lse or a sink needs")
        if needs.parameter_gradients:
            return Reason("the FLASH kernel has no gradients of what a score captures")
        if needs.training and shapes.q_heads != shapes.kv_heads and self._reads_positions(recipe):
            text = "with grouped heads the FLASH kernel's backward hands a score other heads and positions"
            return Reason(f"{text}; repeat k and v for every query head to use it")
        if isinstance(recipe.mask, Listed):
            return Reason("the FLASH kernel ignores the lists of a BlockMask whose rule keeps everything")
        unseen = unseen_in(recipe, self.name)
        if unseen is not None:
            return Reason(f"the FLASH kernel was not seen to compile {unseen}")
        if not installed(MODULE):
            return Reason("flash-attn-4 is not installed", package="flash-attn-4")
        if torch.cuda.get_device_capability(device)[0] <= UNTRIED:
            return Reason("FlashAttention-4 was tried on cards of compute capability 9.0 and later alone")
        return None

    def _reads_positions(self, recipe: Recipe) -> bool:
        return recipe.score is not None and reads_positions(recipe.score, self.name)

    def form(self, q: Tensor, return_lse: bool) -> str:
        """One for this kernel."""
        return self.name

    def plan(self, call: Call, *arguments: Any) -> Plan:
        """The plan of these arguments, lengths and captured numbers included."""
        mend_flash_kernel()
        q, k, _, score_mod, block_mask, *_ = arguments
        rules = score_mod, None if block_mask is None else block_mask.mask_mod
        numbers = tuple(leaf for rule in rules for leaf in leaves(rule) if isinstance(leaf, (bool, int, float)))
        lengths = q.shape[2], k.shape[2]
        return plan_for((self.name, plan_key(*arguments), q.shape[0], lengths, numbers), TUNED_MODE, lengths)

    def finished(self, call: Call, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The lse in natural logarithms, which torch 2.11 scales once too often."""
        return super().finished(call, out, lse / math.log(2) if lse is not None and SCALES_LSE else lse)

    def kernel_options(self, call: Call, block_mask: BlockMask | None) -> dict[str, Any] | None:
        """The kernel's name."""
        return {"BACKEND": "FLASH"}


FLEX_FLASH = FlexFlash()
