"""A user's mask_mod as a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask, MaskMod
from attn_mods.user_function import UserFunction


@dataclass(frozen=True, eq=False)
class UserRule(UserFunction, Mask):  # type: ignore[override]  # a frame of each instance
    """A user's mask_mod."""

    def mask_mod(self) -> MaskMod:
        """The rule itself."""
        return self.rule

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The rule at every position: there is nothing else to go by."""
        device = self.resolve_device(None)
        axes = (torch.arange(n, device=device) for n in (*self.batch_and_heads(), q_len, kv_len))
        return evaluate_everywhere(self.rule, *axes)
