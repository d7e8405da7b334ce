"""A query sees the keys of its own block.

Rule: keep (i, j) iff floor(i / block) = floor(j / block).
From: Qiu et al., "Blockwise Self-Attention for Long Document Understanding", with the identity permutation.
Traps: where the *number* of blocks is given, as in YOLOv12, use Area. LongT5 computes in blocks but sees a window: that
is WindowSymmetric. ``block`` has nothing to do with the block_size of a BlockMask.
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
class BlockDiagonal(Mask):
    """Keep (i, j) iff floor(i / block) = floor(j / block).

    Args:
        block: Tokens in a block, >= 1; the last block may be shorter. An int or a 0-d integer tensor (changes without
            recompiling).

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ. A query whose block has no keys sees nothing.

    Raises:
        ValueError: block < 1.
        TypeError: block is neither an int nor an integer tensor.

    References:
        Qiu et al. 2019, arXiv 1911.02972.
    """

    block: Number

    entry = Entry(
        title="Block diagonal",
        summary="A query sees the keys of its own block.",
        papers=(
            Paper(
                "Blockwise Self-Attention for Long Document Understanding",
                "1911.02972",
                where="the masking matrix of the identity permutation",
            ),
        ),
        models=(Model("BlockBERT"),),
        tags=frozenset({"block", "local", "encoder"}),
        picture="""
            xxx.....
            xxx.....
            xxx.....
            ...xxx..
            ...xxx..
            ...xxx..
            ......xx
            ......xx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: BlockDiagonal(block=3)),
            "one": Case(lambda q_len, kv_len, device: BlockDiagonal(block=1)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: BlockDiagonal(block=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: BlockDiagonal(torch.tensor(40, device=device))),
            "bench": Case(lambda q_len, kv_len, device: BlockDiagonal(block=max(1, min(1024, kv_len // 8)))),
        },
        traps=("Blocks are not a window: a token at the edge of a block does not see its neighbour across it.",),
    )

    def __post_init__(self) -> None:
        checks.integer_field(self, "block", 1, "pass the tokens of a block")

    def mask_mod(self) -> MaskMod:
        """The rule floor(i / block) = floor(j / block)."""
        block = self.block

        def block_diagonal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return q_idx // block == kv_idx // block

        return block_diagonal

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Squares along the diagonal, bool [q_len, kv_len]."""

        def squares(block: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            for start in range(0, q_len, block):
                out[start : start + block, start : start + block] = True
            return out

        return dense_per_axis("B", squares, self.block)

    def band(self) -> Band | None:
        """The diagonal for blocks of one token; else None."""
        return Band(left=0, right=0) if not isinstance(self.block, Tensor) and self.block == 1 else None
