"""What the kernels of a rule say of its tiles, what the rule keeps, and what it means that lists are equal."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import torch
from torch import Tensor

from attn_mods import block_mask
from attn_mods.fused import Planes, fused_planes, kernels, lists_of_planes
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import recorded
from tests.block_mask_equality import dense_truth, tile_truth


def planes_of(rule: Rule, grid: Grid, name: str = "rule", separate_full_blocks: bool = True) -> Planes | None:
    """The codes by the rule's own kernels, waited for; None if no kernel is generated for the rule."""
    graph, _ = recorded(rule, grid)
    if graph is None:
        return None
    planes = fused_planes(graph, grid, name, separate_full_blocks)
    if planes is None:
        kernels.finish()
        planes = fused_planes(graph, grid, name, separate_full_blocks)
    return planes


def lists_by_kernels(
    rule: Rule, grid: Grid, separate_full_blocks: bool = True, compact: bool = False
) -> list[Tensor] | None:
    """The lists of a rule by kernels alone, waited for; None if no kernel is generated for the rule."""
    planes = planes_of(rule, grid, "rule", separate_full_blocks)
    if planes is None:
        return None
    lists = lists_of_planes(planes, grid, separate_full_blocks, compact)
    if lists is None:
        kernels.finish()
        lists = lists_of_planes(planes, grid, separate_full_blocks, compact)
    assert lists is not None
    return lists


def lists_by_calculus(rule: Rule, grid: Grid, separate_full_blocks: bool = True) -> list[Tensor]:
    """The lists without a kernel."""
    with mock.patch.object(block_mask, "available", return_value=False):
        built = block_mask.build_block_mask(rule, grid, separate_full_blocks=separate_full_blocks)
    return block_mask.lists_of(built)


def unpacked(planes: Planes) -> tuple[Tensor, Tensor]:
    """The codes by rows and by columns, both uint8 [B, H, rows, columns]."""
    lines = planes.B * planes.H
    by_rows = planes.codes[: lines * planes.rows * planes.row_bytes]
    by_columns = planes.codes[planes.column_plane :][: lines * planes.columns * planes.column_bytes]
    rows = _codes(by_rows, planes.row_bytes).view(planes.B, planes.H, planes.rows, -1)[..., : planes.columns]
    columns = _codes(by_columns, planes.column_bytes).view(planes.B, planes.H, planes.columns, -1)[..., : planes.rows]
    return rows, columns.transpose(-2, -1)


def _codes(packed: Tensor, line_bytes: int) -> Tensor:
    """Four codes a byte, the first in the lowest bits: uint8 [lines, 4 * line_bytes]."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=packed.device)
    return ((packed.view(-1, line_bytes, 1) >> shifts) & 3).flatten(1)


def true_codes(rule: Rule, grid: Grid, separate_full_blocks: bool = True) -> Tensor:
    """The codes that lists tell apart, by the rule at every position: uint8 [B, H, rows, columns]."""

    def moved(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return rule(b, h, q_idx + grid.q_offset, kv_idx + grid.kv_offset)

    offset = grid.q_offset or grid.kv_offset
    with torch.device(grid.device):
        truth = dense_truth(moved if offset else rule, grid.B, grid.H, grid.q_len, grid.kv_len)
    anywhere, everywhere = tile_truth(truth, grid.block_size)
    if not separate_full_blocks:
        everywhere = torch.zeros_like(everywhere)
    everywhere[:, :, grid.q_len // grid.block_size[0] :] = False
    everywhere[..., grid.kv_len // grid.block_size[1] :] = False
    return torch.where(everywhere, FULL, torch.where(anywhere, MIXED, EMPTY)).to(torch.uint8)


def assert_true_planes(planes: Planes, expected: Tensor, what: str) -> None:
    """Raise AssertionError, naming the first tile, unless the codes by rows and by columns are the expected ones."""
    for side, codes in zip(("rows", "columns"), unpacked(planes), strict=True):
        differs = codes.expand_as(expected) != expected
        if differs.any():
            tile = tuple(differs.nonzero()[0].tolist())
            got, want = int(codes.expand_as(expected)[tile]), int(expected[tile])
            raise AssertionError(f"{what}, codes by {side}: tile {list(tile)} has code {got}, expected {want}")


def assert_same_lists(got: Sequence[Tensor], expected: Sequence[Tensor], what: str, compact: bool = False) -> None:
    """Raise AssertionError unless lists are equal, value for value; of compact ones what the counts say is there."""
    assert len(got) == len(expected), f"{what}: {len(got)} lists, expected {len(expected)}"
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        name = block_mask.LIST_NAMES[number]
        assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device), f"{what}: {name}"
        differs = mine != theirs
        if compact and number % 2:
            differs &= torch.arange(mine.shape[-1], device=mine.device) < expected[number - 1][..., None]
        if differs.any():
            place = tuple(differs.nonzero()[0].tolist())
            values = f"got {int(mine[place])}, expected {int(theirs[place])}"
            raise AssertionError(f"{what}: {name}{list(place)}: {values} ({int(differs.sum())} differ)")
