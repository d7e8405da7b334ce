"""Tile states to torch's BlockMask: the only module that touches BlockMask internals."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.kernels.lists import block_lists
from attn_mods.provenance import remember_rule
from attn_mods.tiles import FULL, MIXED, Grid, States, analyse, resolve
from attn_mods.tiles.rule import Rule, check_rule


def create_block_mask(
    mask_mod: Rule,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The BlockMask that torch's eager function of this name returns, without evaluating Q_LEN x KV_LEN positions.

    Args:
        mask_mod: Rule mask_mod(b, h, q_idx, kv_idx) -> 0-d bool tensor, True = the query sees the key.
        B: Batch size; 1 if None.
        H: Number of query heads; 1 if None.
        Q_LEN: Number of queries.
        KV_LEN: Number of keys; need not equal Q_LEN.
        device: Where the lists are made; the current accelerator, else the CPU, if None.
        BLOCK_SIZE: Positions per block, or (query positions, key positions).
        _compile: Deprecated in torch and without effect here.
        separate_full_blocks: Whether blocks without a hidden pair get lists of their own.
        compute_dq_write_order: Whether to add the order in which a deterministic backward adds up dQ (torch 2.13).
        dq_kv_order: That order: True for descending key blocks, False for ascending.

    Returns:
        BlockMask equal to torch's list for list. A lookup out of range raises only where it is evaluated: not in tiles
        that the calculus decides.

    Raises:
        RuleError: If mask_mod is no mask_mod (a TypeError).
        ValueError: If the options or sizes are not valid.
        NotImplementedError: If the installed torch has no dQ write order.
        Exception: Whatever mask_mod raises at real positions.
    """
    if _compile:
        warnings.warn(
            "create_block_mask: _compile is deprecated and has no effect",
            DeprecationWarning,
            stacklevel=2,
        )
    if not isinstance(dq_kv_order, bool):
        raise ValueError(f"create_block_mask: dq_kv_order must be a bool, got {dq_kv_order!r}")
    if compute_dq_write_order and "dq_write_order" not in inspect.signature(BlockMask.__init__).parameters:
        raise NotImplementedError(f"create_block_mask: torch {torch.__version__} has no compute_dq_write_order")
    check_rule(mask_mod)
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    block_size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else (BLOCK_SIZE[0], BLOCK_SIZE[1])
    grid = Grid(Q_LEN, KV_LEN, block_size, 1 if B is None else B, 1 if H is None else H, device)
    block_mask = build_block_mask(mask_mod, grid, separate_full_blocks=separate_full_blocks)
    if compute_dq_write_order:
        _add_dq_write_order(block_mask, dq_kv_order)
    remember_rule(block_mask)
    return block_mask


def build_block_mask(
    rule: Rule, grid: Grid, *, states: States | None = None, separate_full_blocks: bool = True
) -> BlockMask:
    """The exact BlockMask of a rule on a grid.

    Args:
        rule: The mask_mod; the BlockMask keeps this very object.
        grid: Lengths, block size, batch, heads, device. The rule is evaluated at the grid's absolute positions.
        states: Claims about the tiles that hold, if known otherwise; UNKNOWN tiles are settled by evaluating the rule.
        separate_full_blocks: Whether blocks without a hidden pair get lists of their own.

    Raises:
        RuleError: If the rule is no mask_mod.
        ValueError: If the states do not fit the grid.
        Exception: Whatever the rule raises at real positions.
    """
    analysis = analyse(rule, grid) if states is None else resolve(rule, grid, states)
    codes = _listed_codes(analysis.states.codes, grid, separate_full_blocks)
    by_column = codes.transpose(-2, -1)
    lists: dict[str, Tensor | None] = {}
    for name, plane, code in (
        ("kv", codes, MIXED),
        ("q", by_column, MIXED),
        ("full_kv", codes, FULL),
        ("full_q", by_column, FULL),
    ):
        wanted = separate_full_blocks or code == MIXED
        found = _lists(plane, code, grid) if wanted else (None, None)
        lists[f"{name}_num_blocks"], lists[f"{name}_indices"] = found
    keywords: dict[str, Any] = lists
    return BlockMask(seq_lengths=(grid.q_len, grid.kv_len), BLOCK_SIZE=grid.block_size, mask_mod=rule, **keywords)


def _listed_codes(codes: Tensor, grid: Grid, separate_full_blocks: bool) -> Tensor:
    """EMPTY, MIXED and FULL as the lists tell them apart: a ragged tile is no full block, kernels read those whole."""
    if not separate_full_blocks:
        return torch.where(codes == FULL, MIXED, codes)
    rows, columns = grid.q_len // grid.block_size[0], grid.kv_len // grid.block_size[1]
    if (rows, columns) == (grid.rows, grid.columns):
        return codes
    codes = codes.clone()
    for edge in (codes[:, :, rows:], codes[..., columns:]):
        edge.masked_fill_(edge == FULL, MIXED)
    return codes


def _lists(codes: Tensor, code: int, grid: Grid) -> tuple[Tensor, Tensor]:
    """Lists of all batches and heads; those the rule does not depend on share one storage."""
    counts, indices = block_lists(codes, code)
    return counts.expand(grid.B, grid.H, -1), indices.expand(grid.B, grid.H, -1, -1)


def _add_dq_write_order(block_mask: BlockMask, descending: bool) -> None:
    """Add, for each block of the q lists, how many blocks of its query row are added to dQ before it."""
    mask: Any = block_mask
    listed = _membership(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_indices is not None:
        listed |= _membership(mask.full_kv_num_blocks, mask.full_kv_indices)
    upto = listed.cumsum(-1, dtype=torch.int32)
    rank = upto[..., -1:] - upto if descending else upto - listed.int()
    by_column = rank.transpose(-2, -1)
    mask.dq_write_order = by_column.gather(-1, mask.q_indices.long())
    mask.dq_write_order_full = None if mask.full_q_indices is None else by_column.gather(-1, mask.full_q_indices.long())
    mask.dq_kv_order = None
    mask.dq_kv_order_spt = descending


def _membership(counts: Tensor, indices: Tensor) -> Tensor:
    """Which columns each row lists: bool [B, H, rows, columns]."""
    valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    return torch.zeros_like(valid).scatter(-1, indices.long(), valid)
