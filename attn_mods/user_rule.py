"""A user's mask_mod as a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Frame, Mask, MaskMod


@dataclass(frozen=True, eq=False)
class UserRule(Mask):
    """A user's mask_mod."""

    rule: MaskMod
    B: int = 1
    H: int = 1
    rule_frame: Frame = "self"
    rule_name: str = "user_rule"

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """As the user said."""
        return self.rule_frame

    @property
    def name(self) -> str:
        """The function's name."""
        return self.rule_name

    def mask_mod(self) -> MaskMod:
        """The rule itself."""
        return self.rule

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) as the user said."""
        return self.B, self.H

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The rule at every position: there is nothing else to go by."""
        device = next((value.device for value in self._captured() if isinstance(value, Tensor)), None)
        batch, heads, i, j = (torch.arange(n, device=device) for n in (self.B, self.H, q_len, kv_len))
        return evaluate_everywhere(self.rule, batch, heads, i, j)

    def _captured(self) -> list[Any]:
        return [cell.cell_contents for cell in getattr(self.rule, "__closure__", None) or ()]
