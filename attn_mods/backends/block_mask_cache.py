"""BlockMasks for flex: cached while nothing they depend on changes, or made inside the user's own compiled graph."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import _disable_current_modes

from attn_mods.block_mask import device_of, from_lists, list_bytes, list_shapes, lists_of
from attn_mods.mask import Mask
from attn_mods.parameters import Parameterised, from_structure
from attn_mods.user_rule import UserRule

BLOCK = 128
MOST_BLOCK_MASKS = 32
MOST_BYTES = 1 << 30
"""Most memory that the lists of all cached BlockMasks of one device may take, the newest one excepted."""

VMAP_KEYS = ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchVmapMode")

_cache: OrderedDict[Hashable, BlockMask] = OrderedDict()
_lock = threading.Lock()


def block_mask_for(
    mask: Mask, q_len: int, kv_len: int, device: torch.device, separate_full_blocks: bool = True
) -> BlockMask:
    """The BlockMask of a mask at its offset, for the batch and heads its parameters ask for.

    The key holds identity and version of every tensor the mask depends on, so one that changed in place has another.
    """
    key = (mask.key(), q_len, kv_len, device, separate_full_blocks)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    built = mask.placed_block_mask(q_len, kv_len, device=device, separate_full_blocks=separate_full_blocks)
    if mask.key() == key[0]:  # the key of what cannot be watched, such as an inference tensor, equals no other
        with _lock:
            _store(key, built)
    return built


def _store(key: Hashable, built: BlockMask) -> None:
    """Keep the newest, and of the older ones as many as the bounds allow."""
    _cache[key] = built
    if len(_cache) > MOST_BLOCK_MASKS:
        _cache.popitem(last=False)
    device = device_of(built)
    sizes = {other: list_bytes(held) for other, held in _cache.items() if device_of(held) == device}
    total = sum(sizes.values())
    for other in list(sizes)[:-1]:
        if total <= MOST_BYTES:
            return
        total -= sizes[other]
        del _cache[other]


def block_mask_in_graph(
    mask: Mask, q_len: int, kv_len: int, device: torch.device, separate_full_blocks: bool = True
) -> BlockMask:
    """The same while a user's torch.compile traces: the lists come from one operator, opaque to the compiler."""
    batch, heads = mask.batch_and_heads()
    tensors, structure, integers = list(mask.tensors().values()), mask.structure(), mask.integers()
    lists = _lists(tensors, structure, integers, q_len, kv_len, batch, heads, separate_full_blocks, device)
    return from_lists(lists, mask.mask_mod(), (q_len, kv_len), (BLOCK, BLOCK))


def holds_function(part: Parameterised | None) -> bool:
    """Whether a user's rule is among the parts, which no text describes."""
    if part is None:
        return False
    return isinstance(part, UserRule) or any(holds_function(inner) for inner in part.parts().values())


@torch.library.custom_op("attn_mods::block_lists", mutates_args=())
def _lists(
    tensors: list[Tensor],
    structure: str,
    integers: list[int],
    q_len: int,
    kv_len: int,
    batch: int,
    heads: int,
    separate_full_blocks: bool,
    device: torch.device,
) -> list[Tensor]:
    mask = from_structure(structure, tensors, integers)
    if not isinstance(mask, Mask):
        raise TypeError(f"attn_mods::block_lists needs the structure of a mask, got that of {type(mask).__name__}")
    with _disable_current_modes(), _vmap_allowed():
        built = mask.placed_block_mask(q_len, kv_len, batch, heads, device, BLOCK, separate_full_blocks)
    # Rows of a list may share memory, and what an operator returns must not.
    return [each.clone(memory_format=torch.contiguous_format) for each in lists_of(built)]


@_lists.register_fake
def _(
    tensors: list[Tensor],
    structure: str,
    integers: list[int],
    q_len: int,
    kv_len: int,
    batch: int,
    heads: int,
    separate_full_blocks: bool,
    device: torch.device,
) -> list[Tensor]:
    shapes = list_shapes(batch, heads, (q_len, kv_len), BLOCK, separate_full_blocks)
    return [torch.empty(shape, dtype=torch.int32, device=device) for shape in shapes]


def _vmap_allowed() -> AbstractContextManager[None]:
    """Undo what torch's check of operators' outputs excludes while an operator runs: building lists uses vmap."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in VMAP_KEYS:
        excluded = excluded - torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    guard: AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return guard
