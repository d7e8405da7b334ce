"""BlockMasks for flex: cached while nothing they depend on changes, or made inside the user's own compiled graph."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch._dynamo.decorators import maybe_mark_dynamic
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from torch.utils._python_dispatch import _disable_current_modes

from attn_mods.block_mask import LIST_NAMES, from_lists, list_shapes, lists_of
from attn_mods.block_mask_cache import BlockMaskCache
from attn_mods.mask import Mask
from attn_mods.parameters import Parameterised, from_structure
from attn_mods.user_rule import UserRule

BLOCK = 128

VMAP_KEYS = ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchVmapMode")

BLOCK_MASKS = BlockMaskCache()
"""Those of all calls of ``attention`` in this process that brought none."""

_of_any_length: weakref.WeakKeyDictionary[BlockMask, BlockMask] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def block_mask_for(
    mask: Mask, q_len: int, kv_len: int, device: torch.device, separate_full_blocks: bool = True
) -> BlockMask:
    """The BlockMask of a mask at its offset, for the batch and heads its parameters ask for.

    Kept while nothing that the mask depends on changes.
    """
    return BLOCK_MASKS.held_or_built(
        lambda: (mask.key(), q_len, kv_len, device, separate_full_blocks),
        lambda: mask.placed_block_mask(q_len, kv_len, device=device, separate_full_blocks=separate_full_blocks),
    )


def of_any_length(block_mask: BlockMask) -> BlockMask:
    """The same blocks in lists that are compiled for once, whatever the lengths; ``block_mask`` must not change.

    Left to itself, torch compiles a size in until it has seen another one, each size by itself, and a size of 1 for
    good. So all sizes are marked as changing, and a side of one block gets room for a second, which no count includes
    and no kernel reads. A single query keeps its one block: the kernels for it are compiled for nothing else.
    """
    with _lock:
        if block_mask in _of_any_length:
            return _of_any_length[block_mask]
    rows, columns = block_mask.kv_indices.shape[-2:]
    q_room = int(rows == 1 and block_mask.seq_lengths[0] > 1)
    kv_room = int(columns == 1)
    lists: list[Tensor] = []
    with torch.inference_mode(False):  # kept for a backward pass too
        for name, each in zip(LIST_NAMES, lists_of(block_mask), strict=False):
            first, second = (q_room, kv_room) if "kv" in name else (kv_room, q_room)
            room = (0, first) if name.endswith("num_blocks") else (0, second, 0, first)
            # A tensor of its own even without room: torch compiles anew where a tensor it knows is marked later.
            lists.append(pad(each, room) if any(room) else each.detach())
            maybe_mark_dynamic(lists[-1], list(range(2, each.dim())))
    built = from_lists(lists, block_mask.mask_mod, block_mask.seq_lengths, block_mask.BLOCK_SIZE)
    with _lock:
        _of_any_length[block_mask] = built
    return built


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
        built = mask.placed_block_mask(q_len, kv_len, batch, heads, device, BLOCK, separate_full_blocks, compact=False)
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
