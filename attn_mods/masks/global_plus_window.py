"""Queries see a symmetric window; global tokens see everything and are seen by everything.

Rule: keep (i, j) iff |i - j| <= radius or is_global[i] or is_global[j].
From: Beltagy et al., "Longformer", section 3.1 and the authors' code (longformer.py).
Traps: Longformer's attention_window is the total in Hugging Face (radius = attention_window // 2) and the radius in the
authors' code. Longformer gives global queries projections of their own, which no mask can do. Positions of
``is_global`` are absolute: they do not restart in packed documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._rows import one_row
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class GlobalPlusWindow(Mask):
    """Keep (i, j) iff |i - j| <= radius or is_global[i] or is_global[j].

    Args:
        radius: Keys seen on each side, the query's own not counted; tokens, >= 0, inclusive. An int, a 0-d integer
            tensor (changes without recompiling) or an integer tensor [H], one for each query head. For other windows
            use radius 0 and ``|``: ``WindowAsymmetric(left, right) | GlobalPlusWindow(0, is_global)``.
        is_global: Which tokens are global, bool [S] or [B, S]. Add ``& Causal()`` for a decoder.

    Shapes:
        Queries and keys lie within S positions; ``q_offset`` is required if q_len != kv_len.

    Raises:
        ValueError: radius < 0, is_global of another rank, or (at use) positions past S.
        TypeError: radius is neither an int nor an integer tensor, or is_global no bool tensor.

    References:
        Beltagy et al. 2020, arXiv 2004.05150, section 3.1, global attention.
    """

    radius: Number
    is_global: Tensor

    entry = Entry(
        title="Global tokens plus window",
        summary="Queries see a symmetric window; global tokens see everything and are seen by everything.",
        papers=(
            Paper("Longformer: The Long-Document Transformer", "2004.05150", where="section 3.1, global attention"),
        ),
        models=(Model("Longformer", field="attention_window"), Model("LED", field="attention_window")),
        tags=frozenset({"local", "global", "encoder"}),
        picture="""
            xxxxxxxx
            xxx..x..
            xxxx.x..
            x.xxxx..
            x..xxx..
            xxxxxxxx
            x....xxx
            x....xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: GlobalPlusWindow(1, _every_fifth(q_len, kv_len, device) < 6)),
            "no_globals": Case(
                lambda q_len, kv_len, device: GlobalPlusWindow(9, _every_fifth(q_len, kv_len, device) < 0)
            ),
            "per_sample": Case(
                lambda q_len, kv_len, device: GlobalPlusWindow(
                    3, torch.stack([_every_fifth(q_len, kv_len, device) < n for n in (1, 141)])
                )
            ),
            "per_head": Case(
                lambda q_len, kv_len, device: GlobalPlusWindow(
                    torch.tensor([2, 60], device=device), _every_fifth(q_len, kv_len, device) < 21
                )
            ),
            "one_row": Case(
                lambda q_len, kv_len, device: GlobalPlusWindow(2, _every_fifth(q_len, kv_len, device)[None] < 6)
            ),
            "bench": Case(
                lambda q_len, kv_len, device: GlobalPlusWindow(
                    min(256, kv_len // 16), torch.arange(max(q_len, kv_len), device=device) < max(1, kv_len // 256)
                )
            ),
        },
        traps=(
            "Global attention is symmetric: a global token also sees everything, not only is seen.",
            "A global token inside the window counts once in the softmax; concatenating both parts counts it twice.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "count the keys on one side of the query"
        checks.integer_field(self, "radius", 0, remedy, ndim=(0, 1))
        remedy = "pass True for each global position"
        checks.tensor(self.name, "is_global", self.is_global, ndim=(1, 2), kind="boolean", remedy=remedy)
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule |i - j| <= radius or is_global[i] or is_global[j]."""
        batch, _ = self.batch_and_heads()
        one_for_all = batch == 1
        radius, is_global = captured(self.radius), one_row(self.is_global)

        def window(h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (q_idx - kv_idx <= at(radius, h)) & (kv_idx - q_idx <= at(radius, h))

        def global_plus_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return window(h, q_idx, kv_idx) | is_global[q_idx] | is_global[kv_idx]

        def global_plus_window_per_sample(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return window(h, q_idx, kv_idx) | is_global[b, q_idx] | is_global[b, kv_idx]

        return global_plus_window if one_for_all else global_plus_window_per_sample

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A band of ones and pairs that are not both ordinary, bool [q_len, kv_len] or [B|1, H|1, q_len, kv_len]."""
        ones = torch.ones(q_len, kv_len, dtype=torch.bool)
        band = dense_per_axis("H", lambda radius: ones.triu(-radius).tril(radius), self.radius)
        ordinary = ~self.is_global
        pairs = ordinary[..., :q_len, None] & ordinary[..., None, :kv_len]
        return band.to(pairs.device) | ~(pairs if self.is_global.ndim == 1 else pairs[:, None])

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per row of is_global, one head per radius."""
        return self.is_global.shape[0] if self.is_global.ndim == 2 else 1, size(self.name, "H", self.radius)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Every position has a flag."""
        flags = self.is_global.shape[-1]
        for what, end in (("queries", q_end), ("keys", kv_end)):
            if end is not None and end > flags:
                remedy = "pass one flag for each position"
                checks.fail(self.name, f"the {what} must end within the {flags} flags of is_global", end, remedy)


def _every_fifth(q_len: int, kv_len: int, device: str) -> Tensor:
    position = torch.arange(max(q_len, kv_len), device=device)
    return position.where(position % 5 == 0, 1 << 30)
