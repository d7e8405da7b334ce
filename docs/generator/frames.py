"""Frames: one matrix in few bytes, as the explorer of a page draws it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEVELS = 15
"""Steps between the smallest and the largest value of a score's frame: four bits a value."""


@dataclass(frozen=True)
class Heat:
    """A matrix of values in steps from its smallest to its largest.

    Attributes:
        levels: int64 [q_len, kv_len] from 0 to LEVELS.
        low: The smallest value.
        high: The largest value.
    """

    levels: Tensor
    low: float
    high: float


def heat(values: Tensor) -> Heat:
    """Values in steps; one value everywhere is the highest step."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return Heat(torch.full(values.shape, LEVELS), low, high)
    return Heat(((values - low) / (high - low) * LEVELS).round().long(), low, high)


def extremes(values: Tensor) -> Iterator[str]:
    """Of every row the keys of its highest and of its lowest values, such as "5;0-2,9"; empty if all are equal."""
    highest, lowest = values.amax(-1, keepdim=True), values.amin(-1, keepdim=True)
    told: dict[bytes, str] = {}
    for high, low, same in zip((values == highest).numpy(), (values == lowest).numpy(), highest == lowest, strict=True):
        yield "" if same else ";".join(told.setdefault(keys.tobytes(), _runs(keys)) for keys in (high, low))


def _runs(marks: np.ndarray) -> str:
    """The positions of True, such as "0-2,9"."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], marks.astype(np.int8), [0]))))
    pairs = zip(edges[0::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)
    return ",".join(f"{start}" if start == end else f"{start}-{end}" for start, end in pairs)


def pack_bits(visible: Tensor) -> str:
    """A bool matrix row by row, one bit a pair, highest bit first, as base64."""
    return _text(np.packbits(visible.numpy().ravel()))


def pack_levels(levels: Tensor) -> str:
    """A matrix of levels row by row, four bits a pair, the first in the high half, as base64."""
    flat = levels.numpy().astype(np.uint8).ravel()
    padded = np.append(flat, np.zeros(len(flat) % 2, dtype=np.uint8))
    return _text((padded[0::2] << 4) | padded[1::2])


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
