"""A query sees the keys before the padding at the end of its sample.

Rule: keep (i, j) iff j < lengths.
From: Devlin et al., "BERT", the attention mask of the released code; also the filled part of a static KV cache.
Traps: the key is tested, not the query. Padded queries still see the real keys, as in BERT; their output is to be
ignored. To empty their rows too (as NeMo does), use ``Document.from_ids`` with padding ids. With a decoder add
``& Causal()``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """Keep (i, j) iff j < lengths.

    Args:
        lengths: Real keys of a sample, from position 0 on; tokens, >= 0; 0 leaves the sample's rows empty. An int, a
            0-d integer tensor (changes without recompiling) or an integer tensor [B], one for each sample.

    Shapes:
        Any q_len and kv_len; a length past the last key pads nothing.

    Raises:
        ValueError: A length below 0.
        TypeError: lengths is neither an int nor an integer tensor.

    References:
        Devlin et al. 2018, arXiv 1810.04805; create_attention_mask_from_input_mask in the authors' modeling.py.
    """

    frame = "keys"

    lengths: Number

    entry = Entry(
        title="Key padding",
        summary="A query sees the keys before the padding at the end of its sample.",
        papers=(
            Paper(
                "BERT: Pre-training of Deep Bidirectional Transformers",
                "1810.04805",
                where="modeling.py of the released code, create_attention_mask_from_input_mask",
                url="https://github.com/google-research/bert",
            ),
        ),
        models=(Model("BERT"), Model("DETR")),
        tags=frozenset({"padding", "encoder", "cross"}),
        picture="""
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxx...
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: KeyPadding(lengths=5)),
            "empty_rows": Case(lambda q_len, kv_len, device: KeyPadding(lengths=0)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: KeyPadding(lengths=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: KeyPadding(torch.tensor(40, device=device))),
            "per_sample": Case(lambda q_len, kv_len, device: KeyPadding(torch.tensor([0, 3, 130, 999], device=device))),
            "bench": Case(lambda q_len, kv_len, device: KeyPadding(lengths=max(1, (3 * kv_len) // 4))),
        },
        traps=(
            "Testing the query instead of the key lets real tokens see padding.",
            "A sample of length 0 has empty rows: their output is 0 and their lse is -inf.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass the number of real keys of each sample"
        checks.integer_field(self, "lengths", 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule j < lengths."""
        lengths = captured(self.lengths)

        def key_padding(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx < at(lengths, b)

        return key_padding

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The first columns, bool [q_len, kv_len], or [B, 1, q_len, kv_len] with lengths per sample."""

        def first_columns(length: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            out[:, :length] = True
            return out

        return dense_per_axis("B", first_columns, self.lengths)

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per length."""
        return size(self.name, "B", self.lengths), 1
