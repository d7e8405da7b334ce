"""A query sees its own block and all earlier blocks.

Rule: keep (i, j) iff floor(j / block) <= floor(i / block).
From: Arriola et al., "Block Diffusion" (the block-causal mask over clean tokens); block-causal video generation.
Traps: inside its block a query sees later keys. Blocks count from position 0; for blocks that start after a prompt move
both sides by the rest of its last block: ``BlockCausal(block).shift(q=rest, kv=rest)`` with rest = -prompt % block.
``block`` has nothing to do with the block_size of a BlockMask.
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
class BlockCausal(Mask):
    """Keep (i, j) iff floor(j / block) <= floor(i / block).

    Args:
        block: Tokens in a block, >= 1; 1 is causal. An int or a 0-d integer tensor (changes without recompiling).

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: block < 1.
        TypeError: block is neither an int nor an integer tensor.

    References:
        Arriola et al. 2025, arXiv 2503.09573, the mask M_BC.
    """

    block: Number

    entry = Entry(
        title="Block causal",
        summary="A query sees its own block and all earlier blocks.",
        papers=(
            Paper("Block Diffusion", "2503.09573", where="block-causal mask M_BC over the clean tokens"),
            Paper("MAGI-1: Autoregressive Video Generation at Scale", "2505.13211", where="block-causal attention"),
        ),
        models=(Model("BD3-LM", field="block_size"), Model("MAGI-1")),
        tags=frozenset({"block", "diffusion", "video"}),
        picture="""
            xxx.....
            xxx.....
            xxx.....
            xxxxxx..
            xxxxxx..
            xxxxxx..
            xxxxxxxx
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: BlockCausal(block=3)),
            "one": Case(lambda q_len, kv_len, device: BlockCausal(block=1)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: BlockCausal(block=kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: BlockCausal(torch.tensor(40, device=device))),
            "bench": Case(lambda q_len, kv_len, device: BlockCausal(block=32)),
        },
        traps=(
            "A decoding step must hold whole blocks: a query must not run before the later keys of its block exist.",
        ),
    )

    def __post_init__(self) -> None:
        checks.integer_field(self, "block", 1, "pass the tokens of a block, 1 for causal")

    def mask_mod(self) -> MaskMod:
        """The rule floor(j / block) <= floor(i / block)."""
        block = self.block

        def block_causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx // block <= q_idx // block

        return block_causal

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Rows filled up to the end of their block, bool [q_len, kv_len]."""

        def staircase(block: int) -> Tensor:
            out = torch.zeros(q_len, kv_len, dtype=torch.bool)
            for start in range(0, q_len, block):
                out[start : start + block, : start + block] = True
            return out

        return dense_per_axis("B", staircase, self.block)

    def band(self) -> Band | None:
        """Causal for blocks of one token; else None."""
        return Band(left=None, right=0) if not isinstance(self.block, Tensor) and self.block == 1 else None
