"""How much a mask leaves to compute: blocks and pairs, counted exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from attn_mods.mask import Mask, MaskMod, Offset
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, resolve

POSITIONS_AT_A_TIME = 1 << 22


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
    codes = exact_states(placed, q_len, kv_len, sizes)
    rows, columns = _lengths(q_len, sizes[0], codes), _lengths(kv_len, sizes[1], codes)
    area = rows[:, None] * columns[None, :]
    in_full, in_mixed = int((area * (codes == FULL)).sum()), int((area * (codes == MIXED)).sum())
    mixed = (codes == MIXED).nonzero()
    return Work(
        empty=int((codes == EMPTY).sum()),
        mixed=len(mixed),
        full=int((codes == FULL).sum()),
        pairs_kept=in_full + _kept_in(placed.mask_mod(), mixed, sizes, (q_len, kv_len)),
        pairs_computed=in_full + in_mixed,
        pairs=codes.shape[0] * codes.shape[1] * q_len * kv_len,
    )


def exact_states(placed: Mask, q_len: int, kv_len: int, block_size: tuple[int, int]) -> Tensor:
    """EMPTY, MIXED or FULL for every block of a placed mask, uint8 [B, H, rows, columns]."""
    batch, heads = placed.batch_and_heads()
    grid = Grid(q_len, kv_len, block_size, batch, heads, placed.resolve_device(None))
    codes = resolve(placed.mask_mod(), grid, placed.tile_states(grid)).states.codes
    return codes.expand(batch, heads, -1, -1)


def _lengths(total: int, block: int, like: Tensor) -> Tensor:
    starts = torch.arange(0, total, block, device=like.device)
    return (total - starts).clamp(max=block)


def _kept_in(rule: MaskMod, tiles: Tensor, block_size: tuple[int, int], lengths: tuple[int, int]) -> int:
    kept = 0
    if not len(tiles):
        return kept
    for b, h, q, kv in _positions(tiles, block_size):
        inside = (q < lengths[0])[:, :, None] & (kv < lengths[1])[:, None, :]
        visible = _evaluate(rule, b, h, q.clamp(max=lengths[0] - 1), kv.clamp(max=lengths[1] - 1))
        kept += int((visible & inside).sum())
    return kept


def _positions(tiles: Tensor, block_size: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    q_size, kv_size = block_size
    q_step, kv_step = torch.arange(q_size, device=tiles.device), torch.arange(kv_size, device=tiles.device)
    for chunk in torch.split(tiles, max(1, POSITIONS_AT_A_TIME // (q_size * kv_size))):
        b, h, row, column = chunk.unbind(1)
        yield b, h, row[:, None] * q_size + q_step, column[:, None] * kv_size + kv_step


def _evaluate(rule: MaskMod, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    over_keys = torch.vmap(rule, in_dims=(None, None, None, 0))
    over_pairs = torch.vmap(over_keys, in_dims=(None, None, 0, None))
    with TransformGetItemToIndex():
        return torch.vmap(over_pairs, in_dims=(0, 0, 0, 0))(b, h, q, kv)
