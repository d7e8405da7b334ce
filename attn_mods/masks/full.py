"""A query sees every key.

Rule: keep all (i, j).
From: Vaswani et al., "Attention Is All You Need", section 3.2.1: encoder and cross attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod


@dataclass(frozen=True, eq=False)
class Full(Mask):
    """Keep every (i, j).

    Shapes:
        Any q_len and kv_len.

    References:
        Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """

    frame = "keys"

    entry = Entry(
        title="Full",
        summary="A query sees every key.",
        papers=(Paper("Attention Is All You Need", "1706.03762", where="section 3.2.1"),),
        models=(Model("BERT"), Model("ViT")),
        tags=frozenset({"encoder", "cross"}),
        picture="""
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Full()),
            "bench": Case(lambda q_len, kv_len, device: Full()),
        },
    )

    def mask_mod(self) -> MaskMod:
        """The rule True."""

        def full(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return b.new_ones((), dtype=torch.bool)

        return full

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Ones, bool [q_len, kv_len]."""
        return torch.full((q_len, kv_len), True)

    def band(self) -> Band:
        """No bound."""
        return Band()
