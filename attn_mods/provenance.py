"""What a BlockMask was built for, and whether one that is handed in belongs to a mask.

A BlockMask is lists of blocks plus a rule. A kernel trusts the lists: with lists of another mask, of another length, or
of a parameter's former value it computes something else and says nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.function_state import kernel_signature, leaves, rule_state

REMEDY = "leave block_mask out, or build it anew with mask.block_mask(q_len, kv_len, q_offset=...)"


class Ruled(Protocol):
    """A mask, as far as its BlockMask is concerned."""

    def key(self) -> Hashable:
        """Equal for masks that show the same now."""
        ...

    def mask_mod(self) -> Any:
        """Its rule."""
        ...

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) that the rule depends on."""
        ...


_keys: weakref.WeakKeyDictionary[BlockMask, object] = weakref.WeakKeyDictionary()
_rule_states: weakref.WeakKeyDictionary[BlockMask, object] = weakref.WeakKeyDictionary()


def remember_mask(block_mask: BlockMask, mask: Ruled) -> None:
    """Note which mask these lists were built for, in its present state."""
    _keys[block_mask] = mask.key()


def remember_rule(block_mask: BlockMask) -> None:
    """Note the present state of the rule these lists were built from."""
    _rule_states[block_mask] = rule_state(block_mask.mask_mod)


def check_block_mask(
    name: str,
    block_mask: BlockMask,
    mask: Ruled,
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    device: torch.device,
) -> None:
    """Raise unless the BlockMask is this mask's, now and for these sizes.

    Args:
        name: Entry named in messages.
        block_mask: What was handed in.
        mask: The mask at its offset.
        lengths: (q_len, kv_len).
        sizes: (B, Hq) of q.
        device: Device of q.

    Raises:
        ValueError: Another length, batch, head count or device; lists of another mask; lists built before one of its
            tensors changed.
    """
    check_sizes(name, block_mask, mask.batch_and_heads(), lengths, sizes, device)
    if torch.compiler.is_compiling():
        return
    state = _rule_states.get(block_mask)
    if state is not None and state != rule_state(block_mask.mask_mod):
        problem = "a tensor of the rule that changed since it was built"
        checks.fail(name, "block_mask must be as new as its rule", problem, REMEDY)
    key = mask.key()
    if block_mask in _keys:
        if _keys[block_mask] != key:
            problem = "one built for another mask, or before a tensor of this mask changed"
            checks.fail(name, "block_mask must be built for this mask as it is now", problem, REMEDY)
        return
    if not _same_rule(block_mask.mask_mod, mask.mask_mod()):
        checks.fail(name, "block_mask must have the rule of this mask", f"the rule {_rule_name(block_mask)}", REMEDY)
    _keys[block_mask] = key


def check_sizes(
    name: str,
    block_mask: BlockMask,
    own: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    device: torch.device,
) -> None:
    """Raise unless lengths, batch, heads and device of the lists fit q, k and the rule's own ``(B, H)``."""
    if not isinstance(block_mask, BlockMask):
        remedy = "build one with mask.block_mask(q_len, kv_len), or pass a mask as the recipe"
        checks.fail(name, "block_mask must be a BlockMask", checks.describe(block_mask), remedy, TypeError)
    if tuple(block_mask.seq_lengths) != lengths:
        checks.fail(name, f"block_mask must be for (q_len, kv_len) = {lengths}", tuple(block_mask.seq_lengths), REMEDY)
    for axis, listed, needed, wanted in zip(("B", "Hq"), block_mask.kv_num_blocks.shape, own, sizes, strict=False):
        if listed not in (1, wanted):
            checks.fail(name, f"block_mask must have {axis} = {wanted} as q has, or 1", listed, REMEDY)
        if listed < needed:
            checks.fail(name, f"block_mask must have {axis} = {needed}, the rule depends on it", listed, REMEDY)
    if block_mask.kv_num_blocks.device != device:
        checks.fail(name, f"block_mask must be on {device} as q is", block_mask.kv_num_blocks.device, REMEDY)


def _rule_name(block_mask: BlockMask) -> str:
    return getattr(block_mask.mask_mod, "__name__", type(block_mask.mask_mod).__name__)


def _same_rule(first: object, second: object) -> bool:
    """Whether two rules are the same code on equal values; a mask makes derived tensors anew with every rule."""
    if rule_state(first) == rule_state(second):
        return True
    if kernel_signature(first) != kernel_signature(second):
        return False
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b for a, b in pairs)
