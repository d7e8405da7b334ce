"""A query sees its own chunk of frames, some chunks before it and optionally some frames after it.

Rule: keep (i, j) iff 0 <= floor(i / chunk) - floor(j / chunk) <= left_chunks; in frames, iff
start - left_frames <= j < start + chunk + right_frames with start = floor(i / chunk) * chunk.
From: Zhang et al., "Unified Streaming and Non-streaming Two-pass ... Speech Recognition" (U2), WeNet's
subsequent_chunk_mask; NeMo's chunked_limited and chunked_limited_with_rc.
Traps: a frame sees the later frames of its own chunk. WeNet counts left context in chunks, negative = all (None here).
NeMo's chunked_limited [left, right] is chunk = right + 1, left_chunks = left / chunk, and right = -1 is no chunk at all
but WindowAsymmetric(left, None). Its chunked_limited_with_rc [left, chunk, right] is in frames, beside the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, dense_per_axis


@dataclass(frozen=True, eq=False)
class AsrChunk(Mask):
    """Keep (i, j) iff j is in the chunk of i, in the left context before it or in the right context after it.

    Args:
        chunk: Frames in a chunk, >= 1. All parameters are ints or 0-d integer tensors (change without recompiling, as
            dynamic chunk training wants).
        left_chunks: Earlier chunks seen, >= 0; None = all, unless left_frames is given.
        left_frames: Earlier frames seen, counted from the start of the chunk, >= 0; instead of left_chunks.
        right_frames: Later frames seen, counted from the end of the chunk, >= 0.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: chunk < 1, a context below 0, or both left_chunks and left_frames.
        TypeError: A parameter that is neither an int nor an integer tensor.

    References:
        Zhang et al. 2020, arXiv 2012.05481, dynamic chunk training. Noroozi et al. 2023, arXiv 2312.17279, chunk-aware
        look-ahead. NeMo, conformer_encoder.py, _create_masks.
    """

    chunk: Number
    left_chunks: Number | None = None
    left_frames: Number | None = None
    right_frames: Number = 0

    entry = Entry(
        title="Streaming speech chunks",
        summary="A query sees its own chunk of frames, some chunks before it and optionally some frames after it.",
        papers=(
            Paper("Unified Streaming and Non-streaming Two-pass End-to-end Model", "2012.05481", "dynamic chunks"),
            Paper("Stateful Conformer with Cache-based Inference", "2312.17279", where="chunk-aware look-ahead"),
        ),
        models=(Model("WeNet U2", field="static_chunk_size"), Model("NeMo FastConformer", field="att_context_size")),
        tags=frozenset({"speech", "streaming", "chunked", "encoder"}),
        picture="""
            xx......
            xx......
            xxxx....
            xxxx....
            ..xxxx..
            ..xxxx..
            ....xxxx
            ....xxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: AsrChunk(chunk=2, left_chunks=1)),
            "one": Case(lambda q_len, kv_len, device: AsrChunk(chunk=1, left_chunks=0)),
            "all_left_chunks": Case(lambda q_len, kv_len, device: AsrChunk(chunk=16)),
            "right_context": Case(lambda q_len, kv_len, device: AsrChunk(chunk=7, left_frames=70, right_frames=3)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: AsrChunk(chunk=kv_len + 7, left_chunks=2)),
            "tensor": Case(lambda q_len, kv_len, device: AsrChunk(torch.tensor(25, device=device), left_chunks=2)),
            "bench": Case(lambda q_len, kv_len, device: AsrChunk(chunk=max(1, min(64, kv_len // 16)), left_chunks=8)),
        },
        traps=("left_frames and right_frames count from the edges of the chunk, not from the query's own frame.",),
    )

    def __post_init__(self) -> None:
        checks.integer_field(self, "chunk", 1, "pass the frames of a chunk")
        if self.left_chunks is not None and self.left_frames is not None:
            checks.fail(self.name, "left context is in chunks or in frames", "both", "drop left_chunks or left_frames")
        checks.integer_field(self, "right_frames", 0, "pass 0 for none")
        for field in ("left_chunks", "left_frames"):
            if getattr(self, field) is not None:
                checks.integer_field(self, field, 0, "pass 0 for none, None for all")

    def mask_mod(self) -> MaskMod:
        """The rule, with the two edges of the visible keys as expressions of i."""
        chunk, right_frames = self.chunk, self.right_frames
        left_chunks = 0 if self.left_chunks is None else self.left_chunks
        left_frames = 0 if self.left_frames is None else self.left_frames

        def before_end(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx < (q_idx // chunk + 1) * chunk + right_frames

        def asr_chunk(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            start = (q_idx // chunk - left_chunks) * chunk - left_frames
            return (kv_idx >= start) & before_end(b, h, q_idx, kv_idx)

        return before_end if self.left_chunks is None and self.left_frames is None else asr_chunk

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """One rectangle a chunk, bool [q_len, kv_len]."""

        def rectangles(chunk: int, left_chunks: int | None, left_frames: int | None, right_frames: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            left = left_frames if left_chunks is None else left_chunks * chunk
            for start in range(0, q_len, chunk):
                first = 0 if left is None else max(start - left, 0)
                out[start : start + chunk, first : start + chunk + right_frames] = True
            return out

        return dense_per_axis("B", rectangles, self.chunk, self.left_chunks, self.left_frames, self.right_frames)

    def band(self) -> Band | None:
        """The window of chunks of one frame; else None."""
        if self.tensors() or self.chunk != 1:
            return None
        left = self.left_frames if self.left_chunks is None else self.left_chunks
        return Band(left, self.right_frames)  # type: ignore[arg-type]  # no field is a tensor here
