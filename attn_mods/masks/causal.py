"""A query sees its own key and all earlier ones.

Rule: keep (i, j) iff j <= i.
From: Vaswani et al., "Attention Is All You Need", section 3.2.3.
Trap: SDPA's ``is_causal`` aligns the first query with the first key and flash-attention the last with the last when
the lengths differ. Here positions are absolute: say which query comes first with ``q_offset``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Keep (i, j) iff j <= i.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    References:
        Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3.
    """

    entry = Entry(
        title="Causal",
        summary="A query sees its own key and all earlier ones.",
        papers=(Paper("Attention Is All You Need", "1706.03762", where="section 3.2.3"),),
        models=(Model("GPT-2", field="is_decoder"), Model("Llama 3", field="is_causal")),
        tags=frozenset({"causal", "decoder"}),
        picture="""
            x.......
            xx......
            xxx.....
            xxxx....
            xxxxx...
            xxxxxx..
            xxxxxxx.
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Causal()),
            "bench": Case(lambda q_len, kv_len, device: Causal()),
        },
        traps=("With q_len != kv_len libraries align the first or the last positions; here q_offset says which.",),
    )

    def mask_mod(self) -> MaskMod:
        """The rule j <= i."""

        def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return q_idx >= kv_idx

        return causal

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The lower triangle, bool [q_len, kv_len]."""
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril()

    def band(self) -> Band:
        """Unbounded to the left, nothing to the right."""
        return Band(left=None, right=0)
