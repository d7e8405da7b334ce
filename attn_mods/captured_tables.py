"""What score rules read from tensors they capture: in float32 or wider, and never outside of the tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(value: Tensor) -> Tensor:
    """The value in float32, or in its own dtype if that is wider.

    A rule must not use ``score.dtype``: while it is traced that is the dtype of q, although scores are float32.
    """
    return value.to(torch.promote_types(value.dtype, torch.float32))


def per_head(parameter: Tensor, h: Tensor) -> Tensor:
    """The element of ``parameter`` [H] for query head ``h``, at least float32; one element stands for all heads."""
    return at_least_float32(parameter[only_if_many(h, parameter.shape[0])])


def only_if_many(index: Tensor, size: int) -> Tensor:
    """The batch or head index into an axis of ``size``; 0 if the axis has one element for all.

    Triton's backward kernel of flex_attention (torch 2.11) does not compile for a learned tensor that is read at
    ``h % size`` alone, and does for ``h`` and ``h * 0``.
    """
    return index if size > 1 else index * 0


def inside(index: Tensor, size: int) -> Tensor:
    """The index, moved to the nearest end if it is outside of 0 to size - 1.

    Kernels evaluate rules at masked positions too, and beyond the sequence in the last block.
    """
    return index.clamp(0, size - 1)
