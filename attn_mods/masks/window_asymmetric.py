"""A query sees a fixed number of keys before and after its own.

Rule: keep (i, j) iff i - left <= j <= i + right.
From: Zhang et al., "Transformer Transducer" (limited left and right context); NeMo's "regular" attention context.
Traps: ``left`` and ``right`` count *extra* keys and are inclusive, as flash-attention's window_size does: left + right
+ 1 keys are seen. Unbounded is None here, -1 in flash-attention and NeMo. cuDNN's left bound is left + 1.
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
class WindowAsymmetric(Mask):
    """Keep (i, j) iff i - left <= j <= i + right.

    Args:
        left: Keys seen before the query, its own not counted; tokens, >= 0, inclusive; None = unbounded. An int, a 0-d
            integer tensor (changes without recompiling) or an integer tensor [H], one for each query head.
        right: Keys seen after the query, likewise.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: A bound below 0, or bounds for different numbers of heads.
        TypeError: A bound that is neither None, an int nor an integer tensor.

    References:
        Zhang et al. 2020, arXiv 2002.02562. Noroozi et al. 2023, arXiv 2312.17279 (regular look-ahead).
    """

    left: Number | None
    right: Number | None

    entry = Entry(
        title="Asymmetric window",
        summary="A query sees a fixed number of keys before and after its own.",
        papers=(
            Paper("Transformer Transducer", "2002.02562", where="limited left and right context of the audio encoder"),
            Paper(
                "Stateful Conformer with Cache-based Inference for Streaming ASR",
                "2312.17279",
                where="regular look-ahead; att_context_style='regular' in NeMo",
            ),
        ),
        models=(Model("NeMo Conformer", field="att_context_size"),),
        tags=frozenset({"local", "speech", "encoder"}),
        picture="""
            xx......
            xxx.....
            xxxx....
            .xxxx...
            ..xxxx..
            ...xxxx.
            ....xxxx
            .....xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: WindowAsymmetric(left=2, right=1)),
            "one": Case(lambda q_len, kv_len, device: WindowAsymmetric(left=0, right=0)),
            "unbounded": Case(lambda q_len, kv_len, device: WindowAsymmetric(left=None, right=None)),
            "left_unbounded": Case(lambda q_len, kv_len, device: WindowAsymmetric(left=None, right=5)),
            "right_unbounded": Case(lambda q_len, kv_len, device: WindowAsymmetric(left=20, right=None)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: WindowAsymmetric(kv_len + 7, kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: WindowAsymmetric(torch.tensor(40, device=device), 9)),
            "per_head": Case(lambda q_len, kv_len, device: WindowAsymmetric(torch.tensor([4, 200], device=device), 30)),
            "bench": Case(
                lambda q_len, kv_len, device: WindowAsymmetric(min(768, kv_len // 8), right=min(256, kv_len // 24))
            ),
        },
        traps=(
            "A window of w keys including the query's own is left=w - 1.",
            "flash-attention and NeMo write -1 for unbounded; here it is None and negative bounds are refused.",
        ),
    )

    def __post_init__(self) -> None:
        for field in ("left", "right"):
            if getattr(self, field) is not None:
                remedy = "count the keys beside the query's own, or pass None for unbounded"
                checks.integer_field(self, field, 0, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule i - left <= j <= i + right."""
        left = None if self.left is None else captured(self.left)
        right = None if self.right is None else captured(self.right)

        def window_asymmetric(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            if left is not None and right is not None:
                return (q_idx - kv_idx <= at(left, h)) & (kv_idx - q_idx <= at(right, h))
            if left is not None:
                return q_idx - kv_idx <= at(left, h)
            if right is not None:
                return kv_idx - q_idx <= at(right, h)
            return b.new_ones((), dtype=torch.bool)

        return window_asymmetric

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A band of ones, bool [q_len, kv_len], or [1, H, q_len, kv_len] with bounds per head."""

        def band_of_ones(left: int | None, right: int | None) -> Tensor:
            ones = torch.ones(q_len, kv_len, dtype=torch.bool)
            lower = ones if left is None else ones.triu(-left)
            return lower if right is None else lower.tril(right)

        return dense_per_axis("H", band_of_ones, self.left, self.right)

    def band(self) -> Band | None:
        """The same two bounds; None for tensors."""
        if isinstance(self.left, Tensor) or isinstance(self.right, Tensor):
            return None
        return Band(self.left, self.right)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per bound."""
        return 1, size(self.name, "H", self.left, self.right)
