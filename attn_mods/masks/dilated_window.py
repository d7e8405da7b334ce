"""A query sees every ``dilation``-th key of a window that has gaps.

Rule: keep (i, j) iff i - j is one of 0, dilation, ..., (window - 1) * dilation; without ``causal``, half of the other
taps lie on each side.
From: Beltagy et al., "Longformer", section 3.1 and the authors' code (diagonaled_mm_tvm.py).
Traps: ``window`` counts visible keys, the query's own included. The paper's w is two-sided without the query's own key:
window = w + 1. The code's w is one side: window = 2 * w + 1, or w + 1 with autoregressive=True. attention-gym's window
is the largest distance, inclusive, not a number of keys. LongNet is no sliding window and is not this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class DilatedWindow(Mask):
    """Keep (i, j) iff i - j is a multiple of dilation and one of the window's taps.

    Args:
        window: Keys seen, the query's own included, >= 1; odd without ``causal``. An int, a 0-d integer tensor (changes
            without recompiling) or an integer tensor [H], one for each query head.
        dilation: Distance between neighbouring taps, in tokens, >= 1; 1 has no gaps. Likewise; the paper dilates only
            some heads.
        causal: Whether all taps lie at or before the query; else (window - 1) / 2 lie on each side.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: window or dilation < 1, an even window without ``causal``, or different numbers of heads.
        TypeError: A parameter that is neither an int nor an integer tensor.

    References:
        Beltagy et al. 2020, arXiv 2004.05150, section 3.1, dilated sliding window.
    """

    window: Number
    dilation: Number
    causal: bool = True

    entry = Entry(
        title="Dilated window",
        summary="A query sees every dilation-th key of a window that has gaps.",
        papers=(Paper("Longformer", "2004.05150", where="section 3.1, dilated sliding window"),),
        tags=frozenset({"local", "causal", "encoder", "periodic"}),
        picture="""
            x.......
            .x......
            x.x.....
            .x.x....
            x.x.x...
            .x.x.x..
            ..x.x.x.
            ...x.x.x
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: DilatedWindow(window=3, dilation=2)),
            "one": Case(lambda q_len, kv_len, device: DilatedWindow(window=1, dilation=4)),
            "both_sides": Case(lambda q_len, kv_len, device: DilatedWindow(window=9, dilation=3, causal=False)),
            "no_gaps": Case(lambda q_len, kv_len, device: DilatedWindow(window=7, dilation=1, causal=False)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: DilatedWindow(kv_len + 7, kv_len + 1)),
            "tensor": Case(lambda q_len, kv_len, device: DilatedWindow(5, torch.tensor(6, device=device))),
            "per_head": Case(lambda q_len, kv_len, device: DilatedWindow(21, torch.tensor([1, 4, 16], device=device))),
            "bench": Case(lambda q_len, kv_len, device: DilatedWindow(max(1, min(512, kv_len // 16)), dilation=4)),
        },
        traps=(
            "The paper counts w / 2 keys on each side, its code w on each side, attention-gym the largest distance.",
            "Some rules test distance < w and some distance <= w: one tap more or less.",
            "LongNet's dilated attention keeps a residue class of each segment: another mask under a like name.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "count the visible keys with the query's own"
        checks.integer_field(self, "window", 1, remedy, ndim=(0, 1))
        remedy = "pass the distance between neighbouring taps, 1 for no gaps"
        checks.integer_field(self, "dilation", 1, remedy, ndim=(0, 1))
        checks.boolean(self.name, "causal", self.causal, "pass False for taps on both sides")
        if not self.causal and self._has_even_window():
            remedy = "pass 2 * (keys on one side) + 1, or causal=True"
            checks.fail(self.name, "window must be odd without causal", checks.describe(self.window), remedy)
        self.batch_and_heads()

    def _has_even_window(self) -> bool:
        if isinstance(self.window, Tensor):
            return checks.values_can_be_read() and bool((self.window % 2 == 0).any())
        return self.window % 2 == 0

    def mask_mod(self) -> MaskMod:
        """Same residue, and fewer than window steps of dilation apart; at most window // 2 to each side."""
        window, dilation = captured(self.window), captured(self.dilation)

        def dilated_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            r = at(dilation, h)
            return (q_idx % r == kv_idx % r) & (kv_idx <= q_idx) & (q_idx // r - kv_idx // r < at(window, h))

        def dilated_window_both_sides(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            r = at(dilation, h)
            steps, side = q_idx // r - kv_idx // r, at(window, h) // 2
            return (q_idx % r == kv_idx % r) & (steps <= side) & (-steps <= side)

        return dilated_window if self.causal else dilated_window_both_sides

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """One diagonal a tap, bool [q_len, kv_len], or [1, H, q_len, kv_len] with parameters per head."""

        def diagonals(window: int, dilation: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            before, after = (window - 1, 0) if self.causal else (window // 2, window // 2)
            # Taps outside of the matrix are not counted one by one: a window may be far longer.
            first, last = -min(after, kv_len // dilation), min(before, q_len // dilation)
            for distance in (tap * dilation for tap in range(first, last + 1)):
                if -kv_len < distance < q_len:
                    out.diagonal(-distance).fill_(True)
            return out

        return dense_per_axis("H", diagonals, self.window, self.dilation)

    def band(self) -> Band | None:
        """The window without gaps; None for a dilation above 1 and for tensors."""
        if isinstance(self.window, Tensor) or isinstance(self.dilation, Tensor) or self.dilation > 1:
            return None
        return Band(self.window - 1, 0) if self.causal else Band(self.window // 2, self.window // 2)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per parameter."""
        return 1, size(self.name, "H", self.window, self.dilation)
