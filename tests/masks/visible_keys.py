"""What the tests of single masks look at: which keys each query sees, by the rule."""

from __future__ import annotations

import torch

from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask, Offset


def visible_keys(
    mask: Mask, q_len: int, kv_len: int | None = None, q_offset: Offset | None = None, *, b: int = 0, h: int = 0
) -> list[list[int]]:
    """The keys that each query of batch row ``b`` and head ``h`` sees, ascending."""
    kv_len = q_len if kv_len is None else kv_len
    placed = mask.place(q_len, kv_len, q_offset)
    batch, heads = placed.batch_and_heads()
    axes = (torch.arange(n) for n in (batch, heads, q_len, kv_len))
    rows = evaluate_everywhere(placed.mask_mod(), *axes)[b, h]
    return [row.nonzero().flatten().tolist() for row in rows]


def counts(mask: Mask, q_len: int, *, b: int = 0, h: int = 0) -> list[int]:
    """How many keys each query sees."""
    return [len(keys) for keys in visible_keys(mask, q_len, b=b, h=h)]
