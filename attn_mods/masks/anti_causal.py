"""A query sees its own key and all later ones.

Rule: keep (i, j) iff j >= i.
From: Dong et al., "Unified Language Model Pre-training", section 2.3 (right-to-left LM); MagiAttention's INVCAUSAL.
Trap: the query's own key is visible. A reversed language model that must not see its own token shifts its inputs by
one, as a forward one does; the mask stays this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod


@dataclass(frozen=True, eq=False)
class AntiCausal(Mask):
    """Keep (i, j) iff j >= i.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ. A query past the last key sees nothing.

    References:
        Dong et al. 2019, arXiv 1905.03197, section 2.3, unidirectional LM.
    """

    entry = Entry(
        title="Anti-causal",
        summary="A query sees its own key and all later ones.",
        papers=(
            Paper("Unified Language Model Pre-training", "1905.03197", where="section 2.3, right-to-left LM"),
            Paper(
                "MagiAttention",
                where="AttnMaskType.INVCAUSAL, inverse causal",
                url="https://github.com/SandAI-org/MagiAttention",
            ),
        ),
        models=(Model("UniLM v1"),),
        tags=frozenset({"encoder", "anti-causal"}),
        picture="""
            xxxxxxxx
            .xxxxxxx
            ..xxxxxx
            ...xxxxx
            ....xxxx
            .....xxx
            ......xx
            .......x
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: AntiCausal()),
            "bench": Case(lambda q_len, kv_len, device: AntiCausal()),
        },
        traps=(
            "MagiAttention aligns the first query of a slice with its first key; here positions are absolute.",
            "flash-attention writes this window_size=(0, -1), where -1 means unbounded.",
        ),
    )

    def mask_mod(self) -> MaskMod:
        """The rule j >= i."""

        def anti_causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx >= q_idx

        return anti_causal

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The upper triangle, bool [q_len, kv_len]."""
        return torch.ones(q_len, kv_len, dtype=torch.bool).triu()

    def band(self) -> Band:
        """Nothing to the left, unbounded to the right."""
        return Band(left=0, right=None)
