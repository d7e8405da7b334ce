"""A query sees its own key and ``radius`` keys on each side.

Rule: keep (i, j) iff |i - j| <= radius.
From: Beltagy et al., "Longformer", section 3.1; Warner et al., "ModernBERT", section 2.1.2; Guo et al., "LongT5".
Trap: no two libraries count alike. The radius of a published configuration is attention_window // 2 for Longformer (its
own code takes the radius), local_attention // 2 for ModernBERT, local_radius for LongT5, and sliding_window // 2 for
EmbeddingGemma. Where a rule reads |i - j| < w (vLLM, the Gemma reference), it is w - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class WindowSymmetric(Mask):
    """Keep (i, j) iff |i - j| <= radius.

    Args:
        radius: Keys seen on each side, the query's own not counted; tokens, >= 0, inclusive: 2 * radius + 1 keys in
            all. An int, a 0-d integer tensor (changes without recompiling) or an integer tensor [H], one for each
            query head.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: radius < 0.
        TypeError: radius is neither an int nor an integer tensor.

    References:
        Beltagy et al. 2020, arXiv 2004.05150, section 3.1 (w / 2 tokens on each side).
    """

    radius: Number

    entry = Entry(
        title="Symmetric window",
        summary="A query sees its own key and radius keys on each side.",
        papers=(
            Paper("Longformer: The Long-Document Transformer", "2004.05150", where="section 3.1, sliding window"),
            Paper(
                "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder",
                "2412.13663",
                where="section 2.1.2, alternating attention",
            ),
            Paper("LongT5: Efficient Text-To-Text Transformer for Long Sequences", "2112.07916", "local attention"),
        ),
        models=(
            Model("ModernBERT", field="local_attention"),
            Model("LongT5 (local)", field="local_radius"),
            Model("Longformer", field="attention_window"),
            Model("EmbeddingGemma", field="sliding_window"),
        ),
        tags=frozenset({"local", "encoder"}),
        picture="""
            xxx.....
            xxxx....
            xxxxx...
            .xxxxx..
            ..xxxxx.
            ...xxxxx
            ....xxxx
            .....xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: WindowSymmetric(radius=2)),
            "one": Case(lambda q_len, kv_len, device: WindowSymmetric(radius=0)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: WindowSymmetric(radius=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: WindowSymmetric(torch.tensor(40, device=device))),
            "per_head": Case(lambda q_len, kv_len, device: WindowSymmetric(torch.tensor([4, 200, 0], device=device))),
            "bench": Case(lambda q_len, kv_len, device: WindowSymmetric(radius=min(256, kv_len // 16))),
        },
        traps=(
            "A published window is sometimes the total (Longformer, ModernBERT), sometimes a radius (LongT5).",
            "|i - j| < w shows 2 * w - 1 keys and |i - j| <= w shows 2 * w + 1: libraries differ under one name.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "count the keys on one side of the query, or use Full() for an unbounded window"
        checks.integer_field(self, "radius", 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule |i - j| <= radius."""
        radius = captured(self.radius)

        def window_symmetric(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (q_idx - kv_idx <= at(radius, h)) & (kv_idx - q_idx <= at(radius, h))

        return window_symmetric

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Distances within the radius, bool [q_len, kv_len], or [1, H, q_len, kv_len] with a radius per head."""
        distance = (torch.arange(q_len)[:, None] - torch.arange(kv_len)).abs()
        return dense_per_axis("H", lambda radius: distance <= radius, self.radius)

    def band(self) -> Band | None:
        """The radius on both sides; None for tensors."""
        return None if isinstance(self.radius, Tensor) else Band(left=self.radius, right=self.radius)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per radius."""
        return 1, size(self.name, "H", self.radius)
