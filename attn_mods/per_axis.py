"""Integer parameters that are one number for all, or one number a batch row or query head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.function_state import decides_by_kind

Number = int | Tensor
"""An int, a 0-d integer tensor, or a vector with one number a batch row or query head."""


def size(name: str, axis: Literal["B", "H"], *values: Number | None) -> int:
    """How many rows or heads the vectors among ``values`` ask for; 1 without vectors.

    Raises:
        ValueError: Vectors of different lengths, or an empty one.
    """
    lengths = [value.shape[0] for value in values if isinstance(value, Tensor) and value.ndim == 1]
    if 0 in lengths:
        checks.fail(name, f"a parameter per {axis} must hold at least one number", "none", "pass one for each")
    return checks.broadcast(name, axis, *lengths) if lengths else 1


def captured(value: Number) -> Number:
    """``value`` as a rule captures it: a vector of one number becomes 0-d, so that it serves every row and head."""
    return value.reshape(()) if isinstance(value, Tensor) and value.shape == (1,) else value


@decides_by_kind
def at(value: Number, index: Tensor) -> Number:
    """The number that holds at batch row or head ``index``, inside a rule."""
    return value[index] if isinstance(value, Tensor) and value.ndim == 1 else value


def dense_per_axis(axis: Literal["B", "H"], make: Callable[..., Tensor], *values: Number | None) -> Tensor:
    """``make(*numbers)``, once for all or once a row or head.

    Args:
        axis: What vectors among ``values`` run over.
        make: Takes one number (or None) for each of ``values`` and returns bool [q_len, kv_len].
        values: The parameters.

    Returns:
        bool [q_len, kv_len]; [B, 1, q_len, kv_len] or [1, H, q_len, kv_len] with vectors; on the device of the tensors.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    device = tensors[0].device if tensors else None
    counts = [value.shape[0] for value in tensors if value.ndim == 1]
    if not counts:
        return make(*(_number(value, 0) for value in values)).to(device)
    rows = [make(*(_number(value, n) for value in values)) for n in range(max(counts))]
    matrices = torch.stack(rows).to(device)
    return matrices[:, None] if axis == "B" else matrices[None]


def _number(value: Number | None, n: int) -> int | None:
    if not isinstance(value, Tensor):
        return value
    numbers = value.reshape(-1).tolist()
    return int(numbers[n if len(numbers) > 1 else 0])
