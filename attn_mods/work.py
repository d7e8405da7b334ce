"""How much a mask leaves to compute: blocks and pairs, counted exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.mask import Mask, Offset
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, resolve
from attn_mods.tiles.scanning import Tiles, count_kept


@dataclass(frozen=True)
class Work:
    """Counts over all batch rows and heads that the mask tells apart.

    Args:
        empty: Blocks without a visible pair; a kernel skips them.
        mixed: Blocks with visible and hidden pairs; a kernel evaluates the rule in them.
        full: Blocks without a hidden pair.
        pairs_kept: Visible (query, key) pairs.
        pairs_computed: Pairs in mixed and full blocks: what a kernel multiplies, within the lengths.
        pairs: All pairs.
    """

    empty: int
    mixed: int
    full: int
    pairs_kept: int
    pairs_computed: int
    pairs: int


def count_work(
    mask: Mask,
    q_len: int,
    kv_len: int | None = None,
    *,
    q_offset: Offset | None = None,
    block_size: int | tuple[int, int] = 128,
) -> Work:
    """Count what ``mask`` leaves to compute.

    Args:
        mask: The mask.
        q_len: Number of queries.
        kv_len: Number of keys; q_len if None.
        q_offset: Absolute position of the first query; required for a "self" rule when the lengths differ.
        block_size: Tokens per block, or (query tokens, key tokens).

    Returns:
        Exact counts. Only mixed blocks are evaluated position by position.

    Raises:
        ValueError: Lengths that do not fit the mask.
    """
    kv_len = q_len if kv_len is None else kv_len
    placed = mask.place(q_len, kv_len, q_offset)
    sizes = (block_size, block_size) if isinstance(block_size, int) else block_size
    grid = _grid(placed, q_len, kv_len, sizes)
    codes = _exact_states(placed, grid)
    rows, columns = _lengths(q_len, sizes[0], codes), _lengths(kv_len, sizes[1], codes)
    area = rows[:, None] * columns[None, :]
    in_full, in_mixed = int((area * (codes == FULL)).sum()), int((area * (codes == MIXED)).sum())
    mixed = Tiles.at(grid, *(codes == MIXED).nonzero().unbind(1))
    return Work(
        empty=int((codes == EMPTY).sum()),
        mixed=len(mixed),
        full=int((codes == FULL).sum()),
        pairs_kept=in_full + count_kept(placed.mask_mod(), mixed),
        pairs_computed=in_full + in_mixed,
        pairs=codes.shape[0] * codes.shape[1] * q_len * kv_len,
    )


def exact_states(placed: Mask, q_len: int, kv_len: int, block_size: tuple[int, int]) -> Tensor:
    """EMPTY, MIXED or FULL for every block of a placed mask, uint8 [B, H, rows, columns]."""
    return _exact_states(placed, _grid(placed, q_len, kv_len, block_size))


def _grid(placed: Mask, q_len: int, kv_len: int, block_size: tuple[int, int]) -> Grid:
    batch, heads = placed.batch_and_heads()
    return Grid(q_len, kv_len, block_size, batch, heads, placed.resolve_device(None))


def _exact_states(placed: Mask, grid: Grid) -> Tensor:
    codes = resolve(placed.mask_mod(), grid, placed.tile_states(grid)).states.codes
    return codes.expand(grid.B, grid.H, -1, -1)


def _lengths(total: int, block: int, like: Tensor) -> Tensor:
    starts = torch.arange(0, total, block, device=like.device)
    return (total - starts).clamp(max=block)
