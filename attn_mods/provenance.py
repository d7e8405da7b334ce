"""What a BlockMask was built for: remembered when this package builds one, forgotten with it.

A BlockMask is lists of blocks plus a rule. A kernel trusts the lists: with lists of another mask, of another length, or
of a parameter's former value it computes something else and says nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass

from torch.nn.attention.flex_attention import BlockMask

from attn_mods.function_state import rule_state


@dataclass(frozen=True)
class _Origin:
    mask: Hashable | None
    rule: object


_origins: weakref.WeakKeyDictionary[BlockMask, _Origin] = weakref.WeakKeyDictionary()


def remember(block_mask: BlockMask, mask: Hashable | None = None) -> None:
    """Note that the lists are exact now, for the rule as it is and for the mask of this key, if there is one."""
    _origins[block_mask] = _Origin(mask, rule_state(block_mask.mask_mod))


def is_known(block_mask: BlockMask) -> bool:
    """Whether its lists were ever found exact for its rule."""
    return block_mask in _origins


def is_current(block_mask: BlockMask) -> bool:
    """Whether its lists were found exact for its rule, and nothing that the rule reads has changed since."""
    return block_mask in _origins and _origins[block_mask].rule == rule_state(block_mask.mask_mod)


def belongs_to(block_mask: BlockMask, mask: Hashable) -> bool:
    """Whether its lists were found exact for the mask of this key."""
    return block_mask in _origins and _origins[block_mask].mask == mask
