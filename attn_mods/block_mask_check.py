"""Whether a BlockMask that is handed in belongs to the call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.block_mask import batch_and_heads_of, device_of, has_full_blocks, same_blocks
from attn_mods.function_state import PLAIN, kernel_signature, leaves
from attn_mods.mask import Mask
from attn_mods.provenance import belongs_to, is_current, is_known, remember

AS_IT_IS_NOW = "block_mask must be built for this mask as it is now"
REMEDY = "leave block_mask out, or build it anew with mask.block_mask(q_len, kv_len, q_offset=...)"


def check_block_mask(
    name: str,
    block_mask: BlockMask,
    mask: Mask,
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    device: torch.device,
) -> None:
    """Raise unless the BlockMask is this mask's, now and for these sizes.

    Lists that this package did not build, or built from what it cannot watch, are compared with the mask's own.

    Args:
        name: Entry named in messages.
        block_mask: What was handed in.
        mask: The placed mask.
        lengths: (q_len, kv_len).
        sizes: (B, Hq) of q.
        device: Device of q.

    Raises:
        ValueError: Another length, batch, head count or device; another rule; other lists.
        TypeError: No BlockMask.
    """
    check_sizes(name, block_mask, mask.batch_and_heads(), lengths, sizes, device)
    if torch.compiler.is_compiling():
        return
    key = mask.key()
    if belongs_to(block_mask, key):
        return
    if not _same_rule(block_mask.mask_mod, mask.mask_mod()):
        checks.fail(name, AS_IT_IS_NOW, f"the rule {_rule_name(block_mask)}, another one or with other values", REMEDY)
    if not is_current(block_mask):
        _check_lists(name, AS_IT_IS_NOW, block_mask, mask)
    remember(block_mask, key)


def check_bare_block_mask(
    name: str, block_mask: BlockMask, lengths: tuple[int, int], sizes: tuple[int, int], device: torch.device
) -> None:
    """Raise unless a BlockMask that is itself the mask fits these sizes, and is as new as its rule.

    Args:
        name: Entry named in messages.
        block_mask: What was handed in.
        lengths: (q_len, kv_len).
        sizes: (B, Hq) of q.
        device: Device of q.

    Raises:
        ValueError: Another length, batch, head count or device; lists of what the rule no longer says.
        TypeError: No BlockMask.
    """
    check_sizes(name, block_mask, (1, 1), lengths, sizes, device)
    if torch.compiler.is_compiling():
        return
    rule = Mask.from_mask_mod(block_mask.mask_mod, frame="cross").sized(*sizes)
    check_sizes(name, block_mask, rule.batch_and_heads(), lengths, sizes, device)
    if not is_known(block_mask) or is_current(block_mask):
        return
    _check_lists(name, "block_mask must be as new as its rule", block_mask, rule)
    remember(block_mask)


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
    for axis, listed, needed, wanted in zip(("B", "Hq"), batch_and_heads_of(block_mask), own, sizes, strict=True):
        if listed not in (1, wanted):
            checks.fail(name, f"block_mask must have {axis} = {wanted} as q has, or 1", listed, REMEDY)
        if listed < needed:
            checks.fail(name, f"block_mask must have {axis} = {needed}, the rule depends on it", listed, REMEDY)
    if device_of(block_mask) != device:
        checks.fail(name, f"block_mask must be on {device} as q is", device_of(block_mask), REMEDY)


def _check_lists(name: str, demand: str, block_mask: BlockMask, mask: Mask) -> None:
    batch, heads = batch_and_heads_of(block_mask)
    own = mask.placed_block_mask(
        *block_mask.seq_lengths,
        batch,
        heads,
        device_of(block_mask),
        block_mask.BLOCK_SIZE,
        has_full_blocks(block_mask),
    )
    if not same_blocks(block_mask, own):
        problem = "other blocks: lists of another mask, or of a former value of something the rule reads"
        checks.fail(name, demand, problem, REMEDY)


def _rule_name(block_mask: BlockMask) -> str:
    return getattr(block_mask.mask_mod, "__name__", type(block_mask.mask_mod).__name__)


def _same_rule(first: object, second: object) -> bool:
    """Whether two rules are the same code on equal values; a mask makes derived tensors anew with every rule."""
    if kernel_signature(first) != kernel_signature(second):
        return False
    return all(_same_value(a, b) for a, b in zip(leaves(first), leaves(second), strict=True))


def _same_value(first: object, second: object) -> bool:
    if first is second:
        return True
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.device == second.device and torch.equal(first, second)
    return isinstance(first, PLAIN) and type(first) is type(second) and first == second
