"""BlockMaskCache: one BlockMask for all layers and steps that need the same one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks, compact_lists
from attn_mods.block_mask import device_of, list_bytes, outside_of_graphs
from attn_mods.function_state import tensor_state
from attn_mods.mask import Mask, Offset, sizes_of_lists
from attn_mods.tiles.grid import block_pair


@dataclass(frozen=True, eq=False)
class _Held:
    block_mask: BlockMask
    device: torch.device
    bytes: int


class BlockMaskCache:
    """Keeps the BlockMasks used last, and hands one out again while nothing it depends on has changed.

    What counts is what a mask says, not which object says it: every layer and every step may make its own
    ``masks.SlidingWindow(1024)``. A tensor counts by identity and version. Changed in place it is another one, and so
    is a new tensor of equal values: hold on to the one you have. It stays alive while a BlockMask of it is held. What
    nobody can watch, inference tensors and the NumPy arrays of a user's rule, is built anew at every call. Changes that
    torch does not count, through ``tensor.data`` or memory shared with NumPy, are not seen.

    Threads may share it. Pickled, copied or deep-copied it is an empty cache of the same bounds.

    Args:
        size: Most BlockMasks held, >= 1.
        max_bytes: Most memory the lists on one device may take, >= 0. The newest BlockMask is held whatever it takes.

    Attributes:
        size: See above.
        max_bytes: See above.
        hits: How many BlockMasks were at hand.
        misses: How many had to be built.

    Raises:
        ValueError: size < 1 or max_bytes < 0.
        TypeError: A bound that is no int.
    """

    def __init__(self, size: int = 32, max_bytes: int = 1 << 30) -> None:
        name = type(self).__name__
        self.size = checks.static_integer(name, "size", size, 1, "pass how many BlockMasks to hold")
        self.max_bytes = checks.static_integer(name, "max_bytes", max_bytes, 0, "pass 0 to hold the newest one alone")
        self.hits = 0
        self.misses = 0
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.size, self.max_bytes)

    @property
    def bytes(self) -> int:
        """Memory of all lists held, on all devices together."""
        with self._lock:
            return sum(held.bytes for held in self._held.values())

    def clear(self) -> None:
        """Forget all BlockMasks, and the counts of hits and misses."""
        with self._lock:
            self._held.clear()
            self.hits = self.misses = 0

    @outside_of_graphs
    def block_mask(
        self,
        mask: Mask,
        q_len: int,
        kv_len: int | None = None,
        *,
        B: int | None = None,
        H: int | None = None,
        device: torch.device | str | None = None,
        block_size: int | tuple[int, int] = 128,
        q_offset: Offset | None = None,
        separate_full_blocks: bool = True,
        compact: bool | None = None,
    ) -> BlockMask:
        """``mask.block_mask`` of the other arguments, or the BlockMask that an equal call got before.

        Under ``torch.compile`` it is a graph break; with ``fullgraph=True`` torch refuses it.

        Args:
            mask: Any mask.
            q_len: Number of queries.
            kv_len: Number of keys; q_len if None.
            B: Batch size of the lists.
            H: Number of query heads of the lists.
            device: Where the lists are made; the parameters' device if None.
            block_size: Tokens per block, or (query tokens, key tokens).
            q_offset: Absolute position of the first query; a tensor counts as the mask's do.
            separate_full_blocks: Whether blocks without a hidden pair get lists of their own.
            compact: Whether the lists are stored only as wide as the longest one.

        Returns:
            A BlockMask that others may hold too: do not change its lists.

        Raises:
            ValueError: As ``Mask.block_mask``.
            TypeError: As ``Mask.block_mask``, and for something that is no mask.
        """
        if not isinstance(mask, Mask):
            remedy = "make one of attn_mods.masks, or wrap a rule of yours with Mask.from_mask_mod"
            checks.fail(type(self).__name__, "block_mask needs a mask", checks.describe(mask), remedy, TypeError)
        name = mask.name
        lengths = checks.lengths_of_call(name, q_len, kv_len)
        sizes = sizes_of_lists(name, B, H)
        where = mask.resolve_device(device)
        if q_offset is not None:
            checks.offset(name, "q_offset", q_offset)
        checks.boolean(name, "separate_full_blocks", separate_full_blocks, "pass False for partial blocks alone")
        compact_lists.check_switch(name, compact)
        layout = (*lengths, *sizes, where, block_pair(block_size, name), separate_full_blocks, compact)
        return self.held_or_built(
            lambda: (mask.key(), tensor_state(q_offset) if isinstance(q_offset, Tensor) else q_offset, layout),
            lambda: mask.block_mask(
                *lengths,
                B=B,
                H=H,
                device=where,
                block_size=block_size,
                q_offset=q_offset,
                separate_full_blocks=separate_full_blocks,
                compact=compact,
            ),
        )

    def held_or_built(self, key: Callable[[], Hashable], build: Callable[[], BlockMask]) -> BlockMask:
        """The BlockMask held under a key, else the one that ``build`` returns, held from then on.

        Args:
            key: Gives all that the BlockMask depends on, as it is now. Where some of it cannot be watched, two keys in
                a row must differ: then nothing is held.
            build: Builds it.
        """
        wanted = key()
        with self._lock:
            held = self._held.get(wanted)
            if held is not None:
                self._held.move_to_end(wanted)
                self.hits += 1
                return held.block_mask
            self.misses += 1
        with torch.inference_mode(False):  # lists made in inference mode would not serve a backward pass later
            built = build()
        return self._store(wanted, built) if key() == wanted else built

    def _store(self, key: Hashable, built: BlockMask) -> BlockMask:
        """Hold the newest, and of the older ones as many as the bounds allow."""
        newest = _Held(built, device_of(built), list_bytes(built))
        with self._lock:
            if key in self._held:  # another thread was faster
                return self._held[key].block_mask
            self._held[key] = newest
            if len(self._held) > self.size:
                self._held.popitem(last=False)
            beside = {other: held.bytes for other, held in self._held.items() if held.device == newest.device}
            total = sum(beside.values())
            for other, bytes_of_other in list(beside.items())[:-1]:
                if total <= self.max_bytes:
                    break
                total -= bytes_of_other
                del self._held[other]
        return built
