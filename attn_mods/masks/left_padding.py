"""A query sees the keys after the padding at the start of its sample.

Rule: keep (i, j) iff j >= start.
From: batched generation with padding_side="left" (Hugging Face); flash-attention's cache_leftpad.
Traps: the key is tested, not the query. This is padding only: a decoder adds ``& Causal()``, and then the rows of the
padding itself are empty. Chunks and prefixes of a left-padded sample count from ``start``, not from 0: see
ChunkedCausal(origin=start).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class LeftPadding(Mask):
    """Keep (i, j) iff j >= start.

    Args:
        start: Position of the first real key, that is the number of padding tokens; >= 0. An int, a 0-d integer tensor
            (changes without recompiling) or an integer tensor [B], one for each sample.

    Shapes:
        Any q_len and kv_len; a start past the last key leaves the sample's rows empty.

    Raises:
        ValueError: start < 0.
        TypeError: start is neither an int nor an integer tensor.

    References:
        Hugging Face Transformers, "Generation with LLMs", padding side.
    """

    frame = "keys"

    start: Number

    entry = Entry(
        title="Left padding",
        summary="A query sees the keys after the padding at the start of its sample.",
        papers=(
            Paper(
                "Hugging Face Transformers, Generation with LLMs",
                where="wrong padding side",
                url="https://huggingface.co/docs/transformers/llm_tutorial",
            ),
        ),
        tags=frozenset({"padding", "decoder", "generation"}),
        picture="""
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
            ..xxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: LeftPadding(start=2)),
            "no_padding": Case(lambda q_len, kv_len, device: LeftPadding(start=0)),
            "empty_rows": Case(lambda q_len, kv_len, device: LeftPadding(start=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: LeftPadding(torch.tensor(40, device=device))),
            "per_sample": Case(lambda q_len, kv_len, device: LeftPadding(torch.tensor([0, 3, 130], device=device))),
            "bench": Case(lambda q_len, kv_len, device: LeftPadding(start=kv_len // 4)),
        },
        traps=(
            "Testing the query instead of the key leaves padding visible to real tokens.",
            "With & Causal() the rows of the padding are empty: their output is 0 and their lse is -inf.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass the number of padding tokens before each sample"
        checks.integer_field(self, "start", 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule j >= start."""
        start = captured(self.start)

        def left_padding(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx >= at(start, b)

        return left_padding

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """All but the first columns, bool [q_len, kv_len], or [B, 1, q_len, kv_len] with a start per sample."""

        def last_columns(start: int) -> Tensor:
            out = torch.ones(q_len, kv_len, dtype=torch.bool)
            out[:, :start] = False
            return out

        return dense_per_axis("B", last_columns, self.start)

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per start."""
        return size(self.name, "B", self.start), 1
