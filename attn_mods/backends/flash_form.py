"""A recipe as flash kernels take it: bounds around the diagonal and packed sequences, no matrix of the mask.

A kernel aligns the last query with the last key, a recipe counts from the first of both: the bounds are moved.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.backends.base import Call, Needs, Reason, Shapes
from attn_mods.band import Band
from attn_mods.function_state import tensor_state
from attn_mods.recipe import Recipe

HALF = (torch.float16, torch.bfloat16)
WIDEST = 256
MOST_REMEMBERED = 64

_longest: OrderedDict[Hashable, int] = OrderedDict()
_lock = threading.Lock()


DenseKernel = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""q, k, v [B, length, H, D] to out likewise and lse [B, H, q_len]."""


@dataclass(frozen=True)
class Packed:
    """Sequences behind each other.

    Attributes:
        q_boundaries: Where each one's queries begin and the last one's end, int32 [sequences + 1].
        kv_boundaries: The same of the keys.
        q_longest: Queries of the longest.
        kv_longest: Keys of the longest.
    """

    q_boundaries: Tensor
    kv_boundaries: Tensor
    q_longest: int
    kv_longest: int


PackedKernel = Callable[[Tensor, Tensor, Tensor, Packed], tuple[Tensor, Tensor | None]]
"""q, k, v [B * length, H, D] and where each sequence is, to out likewise and lse [H, B * q_len]."""


def band_of(recipe: Recipe) -> Band:
    """The mask of a recipe that ``form_limits`` has nothing against, as a band."""
    band = _band_of(recipe)
    assert band is not None
    return band


def form_limits(
    kernel: str, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
) -> Reason | None:
    """What no flash kernel does, in the words of the one named."""
    if device.type != "cuda":
        return Reason(f"{kernel} does not run on {device.type}")
    if dtype not in HALF:
        return Reason(f"{kernel} needs float16 or bfloat16, got {dtype}")
    if shapes.head_dim != shapes.value_dim:
        return Reason(f"{kernel} needs values as wide as keys")
    if shapes.head_dim > WIDEST or shapes.head_dim % 8:
        return Reason(f"{kernel} needs a head dimension of at most {WIDEST}, a multiple of 8")
    if needs.kernel_options:
        return Reason(f"{kernel} has no kernel_options")
    if needs.invariant:
        return Reason(f"{kernel} chooses how to split the keys by the lengths")
    return _band_limits(kernel, recipe, shapes)


def bounds_of(band: Band, shapes: Shapes) -> tuple[int | None, int | None]:
    """(left, right) from the diagonal that ends at the last query and the last key."""
    later = shapes.kv_len - shapes.q_len
    left = None if band.left is None else band.left + later
    right = None if band.right is None else band.right - later
    return left, right


def empty_rows(band: Band, shapes: Shapes, device: torch.device) -> Tensor | None:
    """Which queries of a band that ``form_limits`` takes see no key, bool [q_len]; None if each sees one."""
    first = 0 if band.left is None else max(0, shapes.q_len - 1 - band.left)  # the first key of the last query
    if first < shapes.kv_len:
        return None
    last_key = shapes.kv_len - 1
    i = torch.arange(shapes.q_len, device=device)
    low = torch.zeros_like(i) if band.left is None else (i - band.left).clamp(min=0)
    high = torch.full_like(i, last_key) if band.right is None else (i + band.right).clamp(max=last_key)
    return low > high


def run_dense(call: Call, band: Band, kernel: DenseKernel) -> tuple[Tensor, Tensor | None]:
    """Call a kernel on all samples of one length."""
    out, lse = kernel(*(tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v)))
    return _without_empty_rows(out.transpose(1, 2), lse, band, call.shapes)


def run_packed(call: Call, band: Band, kernel: PackedKernel) -> tuple[Tensor, Tensor | None]:
    """Call a kernel on the documents of all samples behind each other, and unpack the result."""
    shapes = call.shapes
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1).contiguous() for tensor in (call.q, call.k, call.v))
    out, lse = kernel(q, k, v, _sequences(band, shapes, q.device))
    out = out.view(shapes.batch, shapes.q_len, shapes.q_heads, shapes.value_dim).transpose(1, 2)
    if lse is not None:
        lse = lse.view(shapes.q_heads, shapes.batch, shapes.q_len).transpose(0, 1)
    return _without_empty_rows(out, lse, band, shapes)


def _sequences(band: Band, shapes: Shapes, device: torch.device) -> Packed:
    q_boundaries, q_longest = _boundaries(band, shapes.batch, shapes.q_len, device)
    if shapes.q_len == shapes.kv_len:
        return Packed(q_boundaries, q_boundaries, q_longest, q_longest)
    kv_boundaries, kv_longest = _boundaries(band, shapes.batch, shapes.kv_len, device)
    return Packed(q_boundaries, kv_boundaries, q_longest, kv_longest)


def _without_empty_rows(out: Tensor, lse: Tensor | None, band: Band, shapes: Shapes) -> tuple[Tensor, Tensor | None]:
    """Output 0 and lse -inf in rows that see nothing, whatever the kernel made of them."""
    empty = empty_rows(band, shapes, out.device)
    if empty is None:
        return out, lse
    return out.masked_fill(empty[:, None], 0), None if lse is None else lse.masked_fill(empty, -math.inf)


def _band_of(recipe: Recipe) -> Band | None:
    return Band() if recipe.mask is None else recipe.mask.band()


def _band_limits(kernel: str, recipe: Recipe, shapes: Shapes) -> Reason | None:
    band = _band_of(recipe)
    if band is None:
        return Reason(f"the mask {recipe.name} is no band of fixed width within documents")
    if any(bound is not None and bound < 0 for bound in bounds_of(band, shapes)):
        return Reason(f"{kernel} takes a negative bound for none")
    if band.right is not None and band.right < shapes.kv_len - 1 and shapes.q_len > shapes.kv_len:
        return Reason(f"{kernel} takes a right bound beyond the keys for none, which more queries than keys lead to")
    if band.cu_seqlens is not None and shapes.q_len != shapes.kv_len:
        return Reason(f"{kernel} needs as many queries as keys in each document")
    return None


def _boundaries(band: Band, batch: int, length: int, device: torch.device) -> tuple[Tensor, int]:
    samples = torch.arange(0, (batch + 1) * length, length, device=device, dtype=torch.int32)
    if band.cu_seqlens is None:
        return samples, length
    documents = band.cu_seqlens.to(device, torch.int32)
    if batch > 1:
        documents = torch.cat([(samples[:-1, None] + documents[:-1]).flatten(), samples[-1:]])
    return documents, _longest_document(band.cu_seqlens)


def _longest_document(cu_seqlens: Tensor) -> int:
    """Tokens of the longest document; read once from a device."""
    if cu_seqlens.device.type == "cpu":
        return int(cu_seqlens.diff().max())
    key = tensor_state(cu_seqlens)
    with _lock:
        if key in _longest:
            _longest.move_to_end(key)
            return _longest[key]
    found = int(cu_seqlens.diff().max())
    with _lock:
        _longest[key] = found
        if len(_longest) > MOST_REMEMBERED:
            _longest.popitem(last=False)
    return found
