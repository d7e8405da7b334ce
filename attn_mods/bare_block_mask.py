"""A BlockMask handed in without a mask is the mask: its full blocks, and its rule inside its partial blocks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.block_mask import batch_and_heads_of, block_tables
from attn_mods.mask import Mask, MaskMod


@dataclass(frozen=True, eq=False)
class Listed(Mask):
    """Keep (i, j) iff its block is full, or partial and the BlockMask's own rule keeps it.

    Args:
        lists: The lists and the rule. Positions are those of q and k, whatever the offset.
    """

    frame = "cross"

    lists: BlockMask

    def mask_mod(self) -> MaskMod:
        """The lists as tables of blocks."""
        q_size, kv_size = self.lists.BLOCK_SIZE
        batch, heads = self.batch_and_heads()
        rule = self.lists.mask_mod
        partial, full = block_tables(self.lists)

        def listed(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            block = (b if batch > 1 else b * 0, h if heads > 1 else h * 0, q_idx // q_size, kv_idx // kv_size)
            return full[block] | (partial[block] & rule(b, h, q_idx, kv_idx))

        return listed

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """There is no second definition of a list."""
        checks.fail("listed", "a bare BlockMask has no dense form", "a BlockMask", "use a mask", NotImplementedError)

    def batch_and_heads(self) -> tuple[int, int]:
        """Those of the lists."""
        return batch_and_heads_of(self.lists)
