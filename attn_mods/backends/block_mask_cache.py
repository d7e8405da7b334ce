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

from attn_mods.mask import Mask
from attn_mods.parameters import Parameterised, from_structure
from attn_mods.user_rule import UserRule

BLOCK = 128
MOST_BLOCK_MASKS = 32
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
    with _lock:
        _cache[key] = built
        if len(_cache) > MOST_BLOCK_MASKS:
            _cache.popitem(last=False)
    return built


def block_mask_in_graph(
    mask: Mask, q_len: int, kv_len: int, device: torch.device, separate_full_blocks: bool = True
) -> BlockMask:
    """The same while a user's torch.compile traces: the lists come from one operator, opaque to the compiler."""
    batch, heads = mask.batch_and_heads()
    lists = _lists(
        list(mask.tensors().values()),
        mask.structure(),
        mask.integers(),
        q_len,
        kv_len,
        batch,
        heads,
        separate_full_blocks,
        device,
    )
    full = lists[4:] if separate_full_blocks else (None, None, None, None)
    return BlockMask(
        seq_lengths=(q_len, kv_len),
        kv_num_blocks=lists[0],
        kv_indices=lists[1],
        q_num_blocks=lists[2],
        q_indices=lists[3],
        full_kv_num_blocks=full[0],
        full_kv_indices=full[1],
        full_q_num_blocks=full[2],
        full_q_indices=full[3],
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=mask.mask_mod(),
    )


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
    with _disable_current_modes(), _vmap_allowed():
        return _build_lists(tensors, structure, integers, q_len, kv_len, batch, heads, separate_full_blocks, device)


def _vmap_allowed() -> AbstractContextManager[None]:
    """Undo what torch's check of operators' outputs excludes while an operator runs: building lists uses vmap."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in VMAP_KEYS:
        excluded = excluded - torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    guard: AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return guard


def _build_lists(
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
    built = mask.placed_block_mask(
        q_len, kv_len, batch, heads, device=device, block_size=BLOCK, separate_full_blocks=separate_full_blocks
    )
    lists = [built.kv_num_blocks, built.kv_indices, built.q_num_blocks, built.q_indices]
    if separate_full_blocks:
        lists += [built.full_kv_num_blocks, built.full_kv_indices, built.full_q_num_blocks, built.full_q_indices]
    # Rows of a list may share memory, and what an operator returns must not.
    return [each.clone(memory_format=torch.contiguous_format) for each in lists if each is not None]


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
    rows, columns = -(-q_len // BLOCK), -(-kv_len // BLOCK)
    by_rows = (batch, heads, rows), (batch, heads, rows, columns)
    by_columns = (batch, heads, columns), (batch, heads, columns, rows)
    shapes = (*by_rows, *by_columns) * (2 if separate_full_blocks else 1)
    return [torch.empty(shape, dtype=torch.int32, device=device) for shape in shapes]
