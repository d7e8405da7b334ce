"""The grid of tiles a rule is analysed on, and the reduction of values per position to values per tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

# One bit a variable; a set of variables is an int. Lead axis n of every value belongs to bit 1 << n.
BATCH, HEAD, QUERY, KEY = 1, 2, 4, 8
POSITIONS = QUERY | KEY


@dataclass(frozen=True)
class Grid:
    """Tiles of `block_size` positions over `q_len` queries and `kv_len` keys.

    Tile row I holds the queries i in [q_offset + I * bq, min(q_offset + (I + 1) * bq, q_offset + q_len)), tile column J
    the keys likewise; `i` and `j` are absolute positions. The last row and column may be ragged (shorter than the
    block).

    Args:
        q_len: Number of queries, >= 0.
        kv_len: Number of keys, >= 0.
        block_size: (queries, keys) of one tile, each >= 1.
        B: Extent of the batch index, >= 0.
        H: Extent of the head index, >= 0.
        device: Where the rule's captured tensors live and the states are made.
        q_offset: Position of the first query: an int or a one-element integer tensor (read once, here).
        kv_offset: Position of the first key, likewise.

    Raises:
        ValueError: If a length is negative, or a block smaller than one position or no pair.
        TypeError: If a block size is no int.
    """

    q_len: int
    kv_len: int
    block_size: tuple[int, int] = (128, 128)
    B: int = 1
    H: int = 1
    device: torch.device | str = "cpu"
    q_offset: int | Tensor = 0
    kv_offset: int | Tensor = 0

    def __post_init__(self) -> None:
        """Normalise the offsets, the block size and the device; check the sizes."""
        object.__setattr__(self, "device", torch.device(self.device))
        object.__setattr__(self, "q_offset", int(self.q_offset))
        object.__setattr__(self, "kv_offset", int(self.kv_offset))
        object.__setattr__(self, "block_size", block_pair(self.block_size))
        if min(self.q_len, self.kv_len, self.B, self.H) < 0:
            name = next(name for name in ("q_len", "kv_len", "B", "H") if getattr(self, name) < 0)
            raise ValueError(f"Grid: {name} must be >= 0, got {getattr(self, name)}; pass 0 for an empty grid")

    @property
    def rows(self) -> int:
        """Number of tile rows, ceil(q_len / bq)."""
        return -(-self.q_len // self.block_size[0])

    @property
    def columns(self) -> int:
        """Number of tile columns, ceil(kv_len / bk)."""
        return -(-self.kv_len // self.block_size[1])

    @property
    def is_empty(self) -> bool:
        """Whether there is no position at all."""
        return 0 in (self.q_len, self.kv_len, self.B, self.H)

    def extent(self, variable: int) -> int:
        """Number of values of one variable (BATCH, HEAD, QUERY or KEY)."""
        if variable >= QUERY:
            return self.q_len if variable == QUERY else self.kv_len
        return self.B if variable == BATCH else self.H

    def offset(self, variable: int) -> int:
        """First value of one variable."""
        if variable < QUERY:
            return 0
        return int(self.q_offset if variable == QUERY else self.kv_offset)

    def block(self, variable: int) -> int:
        """Positions of one tile along QUERY or KEY."""
        return self.block_size[0] if variable == QUERY else self.block_size[1]

    def index_values(self, variable: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Values start..stop-1 (counted from the offset) of one variable, int64, on its own lead axis of four."""
        stop = self.extent(variable) if stop is None else stop
        offset = self.offset(variable)
        values = torch.arange(offset + start, offset + stop, device=self.device)
        return values[(None,) * lead_axis(variable) + (slice(None),) + (None,) * (3 - lead_axis(variable))]


def block_pair(block_size: int | Sequence[int], name: str = "Grid") -> tuple[int, int]:
    """Positions per block as (queries, keys); one int stands for both.

    Args:
        block_size: Positions per block, or (query positions, key positions).
        name: Whose name errors bear.

    Raises:
        ValueError: Another number of sizes than two, or one below 1.
        TypeError: A size that is no int.
    """
    # What every BlockMask asks again of a grid that was checked already.
    if type(block_size) is tuple and [type(size) for size in block_size] == [int, int] and min(block_size) > 0:
        return block_size
    sizes = tuple(block_size) if isinstance(block_size, (tuple, list)) else (block_size, block_size)
    remedy = "pass the positions per block, or a pair (query positions, key positions)"
    if any(isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)) for size in sizes):
        raise TypeError(f"{name}: block_size must be an int or two, got {block_size!r}; {remedy}.")
    if len(sizes) != 2:
        raise ValueError(f"{name}: block_size must be one size or two, got {block_size!r}; {remedy}.")
    if min(sizes) < 1:
        raise ValueError(f"{name}: block_size must be at least 1 position each way, got {block_size!r}; {remedy}.")
    return cast("tuple[int, int]", sizes)


def lead_axis(variable: int) -> int:
    """The lead axis (0 to 3) of one variable."""
    return variable.bit_length() - 1


def per_tile(values: Tensor, variable: int, block: int, reduce: Callable[..., Tensor]) -> Tensor:
    """Reduce the positions of each tile along one variable's axis; the last tile may be ragged.

    Args:
        values: [B|1, H|1, Q|1, KV|1, *event] with positions along the axis of `variable`.
        variable: QUERY or KEY.
        block: Positions per tile.
        reduce: `torch.amin`, `torch.amax`, `torch.all` or `torch.any`, called with a dimension.
    """
    axis = lead_axis(variable)
    length = values.shape[axis]
    if length <= block:
        return reduce(values, dim=axis, keepdim=True)
    whole = length // block * block
    shape = (*values.shape[:axis], whole // block, block, *values.shape[axis + 1 :])
    tiles = reduce(values.narrow(axis, 0, whole).reshape(shape), dim=axis + 1)
    if whole == length:
        return tiles
    ragged = reduce(values.narrow(axis, whole, length - whole), dim=axis, keepdim=True)
    return torch.cat([tiles, ragged], axis)
