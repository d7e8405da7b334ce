"""A query sees its own key and the ``window - 1`` keys before it.

Rule: keep (i, j) iff 0 <= i - j < window.
From: Jiang et al., "Mistral 7B", section 2; the local half of Longformer (Beltagy et al.).
Trap: ``window`` counts visible keys, the query's own included. flash-attention's ``window_size=(w, 0)`` shows w + 1
keys, so it takes ``(window - 1, 0)``; ``band()`` does that conversion.
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
class SlidingWindow(Mask):
    """Keep (i, j) iff 0 <= i - j < window.

    Args:
        window: Keys seen, the query's own included; tokens, >= 1. An int is compiled into the kernel, a 0-d integer
            tensor changes without recompiling, an integer tensor [H] gives each query head its own.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: window < 1.
        TypeError: window is neither an int nor an integer tensor.

    References:
        Jiang et al. 2023, arXiv 2310.06825, section 2 (there W; row i sees i - W < j <= i).
    """

    window: Number

    entry = Entry(
        title="Sliding window",
        summary="A query sees its own key and the window - 1 keys before it.",
        papers=(
            Paper("Mistral 7B", "2310.06825", where="section 2, sliding window attention"),
            Paper("Longformer: The Long-Document Transformer", "2004.05150", where="section 3.1, causal half"),
        ),
        models=(
            Model("Mistral 7B v0.1", field="sliding_window"),
            Model("Gemma 2", field="sliding_window"),
            Model("gpt-oss", field="sliding_window"),
        ),
        tags=frozenset({"causal", "local", "decoder"}),
        picture="""
            x.......
            xx......
            xxx.....
            .xxx....
            ..xxx...
            ...xxx..
            ....xxx.
            .....xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: SlidingWindow(window=3)),
            "one": Case(lambda q_len, kv_len, device: SlidingWindow(window=1)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: SlidingWindow(window=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: SlidingWindow(torch.tensor(40, device=device))),
            "per_head": Case(lambda q_len, kv_len, device: SlidingWindow(torch.tensor([4, 200], device=device))),
            "bench": Case(lambda q_len, kv_len, device: SlidingWindow(window=max(1, min(1024, kv_len // 8)))),
        },
        traps=(
            "flash-attention, varlen_attn and attention-gym count window - 1 keys: they need (window - 1, 0).",
            "A window of 0 means unbounded in some libraries and empty in others; here it is refused.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "count the query's own key, or use Causal() for an unbounded window"
        checks.integer_field(self, "window", 1, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule 0 <= i - j < window."""
        window = captured(self.window)

        def sliding_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (kv_idx <= q_idx) & (q_idx - kv_idx < at(window, h))

        return sliding_window

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A band of ones, bool [q_len, kv_len], or [1, H, q_len, kv_len] with a window per head."""

        def band_of_ones(window: int) -> Tensor:
            return torch.ones(q_len, kv_len, dtype=torch.bool).tril().triu(1 - window)

        return dense_per_axis("H", band_of_ones, self.window)

    def band(self) -> Band | None:
        """window - 1 keys to the left; None for tensors."""
        return None if isinstance(self.window, Tensor) else Band(left=self.window - 1, right=0)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per window."""
        return 1, size(self.name, "H", self.window)
