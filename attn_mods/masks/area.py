"""An image token sees the tokens of its own area, one of ``area`` equal parts of the raster order.

Rule: with n = tokens / area, keep (i, j) iff floor(i / n) = floor(j / n).
From: Tian et al., "YOLOv12", section 3.2; the authors' ``AAttn`` reshapes [B, N, C] to [B * area, N / area, C].
Trap: the code cuts the raster order, so areas are horizontal strips, which end inside a row where area does not divide
the height. The paper also names vertical strips: flatten the image column by column for these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._canvas import check_total
from attn_mods.symbols import fixed


@dataclass(frozen=True, eq=False)
class Area(Mask):
    """Keep (i, j) iff i and j are in the same of ``area`` equal parts.

    Args:
        tokens: Tokens of the feature map, height * width; a multiple of area.
        area: Number of parts, >= 1; 1 is full attention.

    Shapes:
        kv_len is ``tokens``; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: A number below 1, tokens that area does not divide, or (at use) keys that do not end at tokens.
        TypeError: A number that is not an int.

    References:
        Tian et al. 2025, arXiv 2502.12524, section 3.2.
    """

    tokens: int
    area: int

    entry = Entry(
        title="Area",
        summary="An image token sees the tokens of its own area, one of a few equal strips of the feature map.",
        papers=(
            Paper(
                "YOLOv12: Attention-Centric Real-Time Object Detectors",
                "2502.12524",
                where="section 3.2, and AAttn in the authors' ultralytics/nn/modules/block.py",
            ),
        ),
        models=(Model("YOLOv12", field="area"),),
        tags=frozenset({"vision", "local", "encoder"}),
        picture="""
            xx......
            xx......
            ..xx....
            ..xx....
            ....xx..
            ....xx..
            ......xx
            ......xx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Area(kv_len, _divisor(kv_len, 4))),
            "one_area": Case(lambda q_len, kv_len, device: Area(kv_len, area=1)),
            "every_token": Case(lambda q_len, kv_len, device: Area(kv_len, area=kv_len)),
            "bench": Case(lambda q_len, kv_len, device: Area(kv_len, _divisor(kv_len, 4))),
        },
        traps=("Areas are strips of the raster order, not windows: an area spans the whole width of the image.",),
    )

    def __post_init__(self) -> None:
        checks.static_integer_field(self, "tokens", 1, "pass height * width")
        checks.static_integer_field(self, "area", 1, "pass the number of areas; 1 is full attention")
        if self.tokens % self.area:
            got = f"{self.tokens} tokens and area {self.area}"
            checks.fail(self.name, "area must divide tokens", got, "pad the feature map or choose another area")

    def mask_mod(self) -> MaskMod:
        """The rule of equal quotients."""
        size = fixed(self.tokens // self.area)

        def area(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return q_idx // size == kv_idx // size

        return area

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Equal blocks of ones along the diagonal, bool [q_len, kv_len]."""
        size = self.tokens // self.area
        areas = torch.eye(self.area, dtype=torch.bool)
        return areas.repeat_interleave(size, 0).repeat_interleave(size, 1)[:q_len, :kv_len]

    def band(self) -> Band:
        """Every area is a document."""
        return Band(cu_seqlens=torch.arange(0, self.tokens + 1, self.tokens // self.area, dtype=torch.int32))

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The keys are the tokens of one feature map."""
        check_total(self.name, self.tokens, q_end, kv_end, "pass tokens = kv_len")


def _divisor(tokens: int, largest: int) -> int:
    return next(number for number in range(largest, 0, -1) if tokens % number == 0)
