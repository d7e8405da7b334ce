"""Every query sees the prefix; the rest is causal.

Rule: keep (i, j) iff j < prefix or j <= i.
From: Raffel et al., "Exploring the Limits of Transfer Learning" (T5), section 3.2.1; Dong et al. (UniLM), section 2.3.
Traps: a prefix that reaches one token into the targets shows the model its labels. ``prefix`` counts from position 0:
with left padding it includes the padding, with packed documents use ``PrefixLm(...).per_document(cu_seqlens)``. The
prefix shows its padding too: add ``& KeyPadding(lengths)``.
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
class PrefixLm(Mask):
    """Keep (i, j) iff j < prefix or j <= i.

    Args:
        prefix: Length of the prefix in tokens, >= 0; 0 is causal. An int, a 0-d integer tensor (changes without
            recompiling) or an integer tensor [B], one for each sample.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ. A prefix past the last key is all of them.

    Raises:
        ValueError: prefix < 0.
        TypeError: prefix is neither an int nor an integer tensor.

    References:
        Raffel et al. 2019, arXiv 1910.10683, section 3.2.1, figure 3 (causal with prefix).
    """

    prefix: Number

    entry = Entry(
        title="Prefix LM",
        summary="Every query sees the prefix; the rest is causal.",
        papers=(
            Paper(
                "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
                "1910.10683",
                where="section 3.2.1, figure 3",
            ),
            Paper("Unified Language Model Pre-training", "1905.03197", where="section 2.3, sequence-to-sequence LM"),
            Paper("PaliGemma: A versatile 3B VLM for transfer", "2407.07726", where="figure 2"),
        ),
        models=(Model("PaliGemma"), Model("UniLM v1")),
        tags=frozenset({"decoder", "prefix", "multimodal"}),
        picture="""
            xxx.....
            xxx.....
            xxx.....
            xxxx....
            xxxxx...
            xxxxxx..
            xxxxxxx.
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: PrefixLm(prefix=3)),
            "no_prefix": Case(lambda q_len, kv_len, device: PrefixLm(prefix=0)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: PrefixLm(prefix=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: PrefixLm(torch.tensor(40, device=device))),
            "per_sample": Case(lambda q_len, kv_len, device: PrefixLm(torch.tensor([0, 17, 200], device=device))),
            "bench": Case(lambda q_len, kv_len, device: PrefixLm(prefix=kv_len // 4)),
        },
        traps=(
            "A prefix one token too long shows the model the label it must predict.",
            "One prefix for all samples is wrong once prompts differ in length: pass a tensor [B].",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass the number of tokens that all queries see, 0 for none"
        checks.integer_field(self, "prefix", 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule j < prefix or j <= i."""
        prefix = captured(self.prefix)

        def prefix_lm(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (kv_idx < at(prefix, b)) | (kv_idx <= q_idx)

        return prefix_lm

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The lower triangle with its first columns filled, bool [q_len, kv_len], or [B, 1, q_len, kv_len]."""

        def filled_triangle(prefix: int) -> Tensor:
            out = torch.ones(q_len, kv_len, dtype=torch.bool).tril()
            out[:, :prefix] = True
            return out

        return dense_per_axis("B", filled_triangle, self.prefix)

    def band(self) -> Band | None:
        """Causal where the prefix is empty or one token, which every query sees anyway; else None."""
        return Band(left=None, right=0) if not isinstance(self.prefix, Tensor) and self.prefix <= 1 else None

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per prefix."""
        return size(self.name, "B", self.prefix), 1
