"""Noised tokens see their own block and the clean blocks before it; clean tokens see clean blocks up to their own.

Rule: on the 2 S tokens [x_t ; x_0] with block n(p) = floor((p mod S) / block_size), keep (i, j) iff
both are noised and n(j) = n(i), or i is noised, j is clean and n(j) < n(i), or both are clean and n(j) <= n(i).
From: Arriola et al., "Block Diffusion", section 3.2 (one pass over x_t and x_0); the authors' ``block_diff_mask`` in
``models/dit.py`` gives the same three parts.
Traps: the noised half comes first; a noised block must not see its own clean block, which holds the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._canvas import check_total

_FEW = ((8, 8), (100, 100), (258, 258))
# halves of one token, ragged ones, those of a tile of 128 and around it; with queries left out in either half
_LENGTHS = (
    (2, 2), (1, 10), (10, 10), (45, 90), (90, 90), (37, 100), (128, 128), (97, 194), (194, 194), (129, 256),
    (256, 256), (130, 258), (258, 258), (384, 384),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class BlockDiffusion(Mask):
    """The training mask of block diffusion on the noised tokens x_t followed by the clean tokens x_0.

    Args:
        length: Tokens of one half, S; positions 0 .. S - 1 are x_t and S .. 2 S - 1 are x_0.
        block_size: Tokens denoised together, >= 1; the last block of each half may be shorter.

    Shapes:
        kv_len is 2 * length; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: A length or block_size below 1, or (at use) keys that do not end at 2 * length.
        TypeError: A length or block_size that is not an int.

    References:
        Arriola et al. 2025, arXiv 2503.09573, section 3.2.
    """

    length: int
    block_size: int

    entry = Entry(
        title="Block diffusion",
        summary="Noised tokens see their own block and earlier clean blocks; clean tokens see clean blocks causally.",
        papers=(
            Paper(
                "Block Diffusion: Interpolating Between Autoregressive and Diffusion Language Models",
                "2503.09573",
                where="section 3.2, and block_diff_mask in the authors' models/dit.py",
            ),
        ),
        models=(Model("BD3-LM", field="block_size"),),
        tags=frozenset({"diffusion", "training", "block"}),
        picture="""
            xx......
            xx......
            ..xxxx..
            ..xxxx..
            ....xx..
            ....xx..
            ....xxxx
            ....xxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, block_size=2), _FEW),
            "one_token_blocks": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, block_size=1), _LENGTHS),
            "ragged_last_block": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, 7), _LENGTHS),
            "longer_than_tiles": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, 130), _LENGTHS),
            "one_block": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, kv_len), _LENGTHS),
            "bench": Case(lambda q_len, kv_len, device: BlockDiffusion(kv_len // 2, 16), ((4096, 4096), *_LENGTHS)),
        },
        traps=(
            "A noised block that sees its own clean block has been told the answer: clean keys are strictly earlier.",
            "Video models train with the same mask and the halves swapped, clean first; here noised tokens come first.",
        ),
    )

    def __post_init__(self) -> None:
        checks.static_integer_field(self, "length", 1, "pass the tokens of one half, not of both")
        checks.static_integer_field(self, "block_size", 1, "pass the tokens of a block")

    def mask_mod(self) -> MaskMod:
        """The rule as two intervals of keys by query: its own block in its own half, and the clean blocks before it."""
        length, block_size = self.length, self.block_size

        def block_diffusion(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            position = q_idx % length
            half = q_idx - position
            start = position // block_size * block_size
            own = (half + start <= kv_idx) & (kv_idx < half + (start + block_size).clamp(max=length))
            earlier_and_clean = (length <= kv_idx) & (kv_idx < length + start)
            return own | earlier_and_clean

        return block_diffusion

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Four quarters made of blocks of ones, bool [q_len, kv_len]."""
        own = torch.zeros(self.length, self.length, dtype=torch.bool)
        earlier = own.clone()
        for start in range(0, self.length, self.block_size):
            end = start + self.block_size
            own[start:end, start:end] = True
            earlier[start:end, :start] = True
        noised = torch.cat([own, earlier], 1)
        clean = torch.cat([torch.zeros_like(own), own | earlier], 1)
        return torch.cat([noised, clean])[:q_len, :kv_len]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The keys are both halves."""
        check_total(self.name, 2 * self.length, q_end, kv_end, "pass length = kv_len / 2, the tokens of one half")
