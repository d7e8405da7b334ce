"""A catalogue of attention masks and score modifications for PyTorch FlexAttention."""

from attn_mods import masks, nn, scores
from attn_mods.block_mask import create_block_mask
from attn_mods.block_mask_cache import BlockMaskCache
from attn_mods.dispatch import attention, explain
from attn_mods.mask import Mask
from attn_mods.oracle import reference
from attn_mods.recipe import Recipe
from attn_mods.registry import find, get, info, names
from attn_mods.score import Score
from attn_mods.verification import verify

__all__ = [
    "BlockMaskCache",
    "Mask",
    "Recipe",
    "Score",
    "attention",
    "create_block_mask",
    "explain",
    "find",
    "get",
    "info",
    "masks",
    "names",
    "nn",
    "reference",
    "scores",
    "verify",
]
