"""Text sees causally; the tokens of one image also see each other in both directions.

Rule: keep (i, j) iff j <= i or span[i] = span[j] >= 0, limited by a window as ``window_limits`` says.
From: Gemma 3 (2503.19786). Its sliding-window layers are masked in three published ways, each one value here: "both" is
|i - j| < W, as in google-deepmind/gemma (``_create_sliding_mask``); "past" is i - j < W, as in transformers 5
(``sliding_window_overlay`` on everything); "text" is older transformers and vLLM, where images escape the window.
Traps: spans need numbers of their own: two images side by side under one flag see each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.documents import check_total
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._rows import one_row
from attn_mods.realised import realised

WindowLimits = Literal["both", "past", "text"]


@dataclass(frozen=True, eq=False)
class MultimodalSpans(Mask):
    """Keep (i, j) iff j <= i or i and j are in the same span, within a window.

    Args:
        span: The number of the image (or other two-way span) of each token, -1 for text; integer, [S] or [B, S].
        window: Keys seen to one side, the query's own included, >= 1; None = unbounded.
        window_limits: What the window limits. "both": every pair, |i - j| < window. "past": every pair, but only
            backwards, i - j < window. "text": the causal part only, so that a span is always seen whole.

    Shapes:
        kv_len is S; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: A span below -1, a window below 1, another window_limits, or (at use) an S that is not kv_len.
        TypeError: A span that is not an integer tensor, a window that is not an int.

    References:
        Gemma Team 2025, arXiv 2503.19786.
    """

    span: Tensor
    window: int | None = None
    window_limits: WindowLimits = "both"

    entry = Entry(
        title="Multimodal spans",
        summary="Text sees causally; the tokens of one image also see each other in both directions.",
        papers=(
            Paper("Gemma 3 Technical Report", "2503.19786"),
            Paper(
                "gemma, the authors' code",
                url="https://github.com/google-deepmind/gemma",
                where="make_causal_bidirectional_attention_mask and _create_sliding_mask",
            ),
        ),
        models=(Model("Gemma 3", field="sliding_window"),),
        tags=frozenset({"multimodal", "causal", "decoder"}),
        picture="""
            x.......
            xx......
            xxxxx...
            xxxxx...
            xxxxx...
            xxxxxx..
            xxxxxxx.
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 2, 3, device))),
            "text_only": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, kv_len, 1, device))),
            "one_image": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 0, kv_len, device), 5)),
            "both": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 9, 40, device), 16, "both")),
            "past": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 9, 40, device), 16, "past")),
            "text": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 9, 40, device), 16, "text")),
            "per_sample": Case(lambda q_len, kv_len, device: MultimodalSpans(_samples(kv_len, device), 20, "past")),
            "one_row": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 9, 40, device)[None], 16)),
            "bench": Case(lambda q_len, kv_len, device: MultimodalSpans(_spans(kv_len, 256, 256, device), 1024)),
        },
        traps=(
            "Under one is-image flag, neighbouring images see each other; number the images.",
            "Whether an image escapes the sliding window differs between releases: say it with window_limits.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "number the images from 0 and give text -1"
        span = checks.tensor(self.name, "span", self.span, ndim=(1, 2), kind="integer", remedy=remedy)
        checks.integer(self.name, "span", span, -1, remedy, ndim=(1, 2))
        if checks.values_can_be_read() and span.numel() and int(span.max()) >= 2**29:
            checks.fail(self.name, "span must be below 2^29", int(span.max()), remedy)
        if self.window is not None:
            checks.static_integer_field(self, "window", 1, "count the query's own key; None is unbounded")
        if self.window_limits not in ("both", "past", "text"):
            remedy = 'pass "both", "past" or "text"'
            checks.fail(self.name, "window_limits must say what the window limits", repr(self.window_limits), remedy)

    def mask_mod(self) -> MaskMod:
        """Causal or same span, inside the window."""
        q_span, kv_span = self._numbered()
        window, limits = self.window, self.window_limits

        def combine(same_span: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            causal = kv_idx <= q_idx
            if window is None:
                return causal | same_span
            recent = q_idx - kv_idx < window
            if limits == "text":
                return (causal & recent) | same_span
            if limits == "past":
                return (causal | same_span) & recent
            return (causal | same_span) & recent & (kv_idx - q_idx < window)

        def multimodal_spans(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return combine(q_span[q_idx] == kv_span[kv_idx], q_idx, kv_idx)

        def multimodal_spans_per_sample(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return combine(q_span[b, q_idx] == kv_span[b, kv_idx], q_idx, kv_idx)

        return multimodal_spans if q_span.ndim == 1 else multimodal_spans_per_sample

    def _numbered(self) -> tuple[Tensor, Tensor]:
        """Numbers that are equal iff the spans are and are no text, and that rise along the sequence as spans do.

        A text token takes a number of its own next to the span before it: tiles far apart then have numbers far apart.
        """
        span = one_row(self.span).to(torch.int32)
        before = span.cummax(-1).values if span.shape[-1] else span
        q_span, kv_span = (torch.where(span < 0, 3 * before + side, 3 * span) for side in (1, 2))
        return realised(q_span), realised(kv_span)

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Triangle, squares of the spans and diagonals of the window; bool [q_len, kv_len] or [B, 1, q_len, kv_len]."""
        ones = torch.ones(self.span.shape[-1], self.span.shape[-1], dtype=torch.bool, device=self.span.device)
        spans = torch.zeros_like(ones).expand(*self.span.shape[:-1], *ones.shape).clone()
        for number in range(int(self.span.max()) + 1 if self.span.numel() else 0):
            inside = self.span == number
            spans |= inside[..., :, None] & inside[..., None, :]
        past = ones if self.window is None else ones.triu(1 - self.window)
        future = ones if self.window is None or self.window_limits == "past" else ones.tril(self.window - 1)
        triangle = ones.tril()
        visible = (triangle & past) | spans if self.window_limits == "text" else (triangle | spans) & past & future
        visible = visible[..., :q_len, :kv_len]
        return visible if visible.ndim == 2 else visible[:, None]

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per row of span."""
        return self.span.shape[0] if self.span.ndim == 2 else 1, 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Span describes all keys and holds every query."""
        check_total(self.name, "span", self.span.shape[-1], q_end, kv_end)


def _spans(length: int, text: int, image: int, device: str) -> Tensor:
    position = torch.arange(length, device=device)
    return torch.where(position % (text + image) >= text, position // (text + image), -1)


def _samples(length: int, device: str) -> Tensor:
    return torch.stack([_spans(length, 10, 30, device), _spans(length, 50, 14, device)])
