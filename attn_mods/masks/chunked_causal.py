"""A query sees its own key and the earlier keys of its chunk.

Rule: keep (i, j) iff j <= i and floor((i - origin) / chunk) = floor((j - origin) / chunk).
From: Llama 4, create_chunked_attention_mask in llama-models; Hugging Face's chunked_overlay.
Traps: the first query of a chunk sees only itself. Chunks count from ``origin``: the first token that is not padding in
Hugging Face, position 0 in flash-attention 3 and torchtune (origin=0). Division rounds down, so the padding before the
origin forms chunks of its own; it is not hidden: add ``& LeftPadding(start)``.
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
class ChunkedCausal(Mask):
    """Keep (i, j) iff j <= i and i and j are in the same chunk.

    Args:
        chunk: Tokens in a chunk, >= 1. An int or a 0-d integer tensor (changes without recompiling).
        origin: Position where a chunk starts, >= 0; the number of padding tokens before a left-padded sample. An int, a
            0-d integer tensor or an integer tensor [B], one for each sample.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: chunk < 1 or origin < 0.
        TypeError: A parameter that is neither an int nor an integer tensor.

    References:
        Meta, llama-models, models/llama4/model.py, create_chunked_attention_mask.
    """

    chunk: Number
    origin: Number = 0

    entry = Entry(
        title="Chunked causal",
        summary="A query sees its own key and the earlier keys of its chunk.",
        papers=(
            Paper(
                "Llama 4",
                where="llama-models, models/llama4/model.py, create_chunked_attention_mask",
                url="https://github.com/meta-llama/llama-models",
            ),
        ),
        models=(
            Model("Llama 4 Scout", field="attention_chunk_size"),
            Model("Llama 4 Maverick", "attention_chunk_size"),
        ),
        tags=frozenset({"causal", "local", "decoder", "chunked"}),
        picture="""
            x.......
            xx......
            xxx.....
            ...x....
            ...xx...
            ...xxx..
            ......x.
            ......xx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: ChunkedCausal(chunk=3)),
            "one": Case(lambda q_len, kv_len, device: ChunkedCausal(chunk=1)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: ChunkedCausal(chunk=kv_len + 7)),
            "origin": Case(lambda q_len, kv_len, device: ChunkedCausal(chunk=32, origin=45)),
            "per_sample": Case(
                lambda q_len, kv_len, device: ChunkedCausal(50, origin=torch.tensor([0, 3, 61, 300], device=device))
            ),
            "tensor": Case(lambda q_len, kv_len, device: ChunkedCausal(torch.tensor(40, device=device), 7)),
            "bench": Case(lambda q_len, kv_len, device: ChunkedCausal(chunk=max(1, min(8192, kv_len // 8)))),
        },
        traps=(
            "Chunks are not a window: the first token of a chunk sees one key, the last sees chunk keys.",
            "With left padding chunks must count from the first real token, else they move with the batch.",
        ),
    )

    def __post_init__(self) -> None:
        checks.integer_field(self, "chunk", 1, "pass the tokens of a chunk, or use Causal()")
        remedy = "pass the position of the first real token"
        checks.integer_field(self, "origin", 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule j <= i and the same chunk."""
        chunk, origin = self.chunk, captured(self.origin)

        def chunked_causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            first = at(origin, b)
            return (kv_idx <= q_idx) & ((q_idx - first) // chunk == (kv_idx - first) // chunk)

        return chunked_causal

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Triangles along the diagonal, bool [q_len, kv_len], or [B, 1, q_len, kv_len] with an origin per sample."""

        def triangles(chunk: int, origin: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            for start in range(origin % chunk - chunk, q_len, chunk):
                block = out[max(start, 0) : start + chunk, max(start, 0) : start + chunk]
                block.copy_(torch.ones_like(block).tril())
            return out

        return dense_per_axis("B", triangles, self.chunk, self.origin)

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per origin."""
        return size(self.name, "B", self.origin), 1
