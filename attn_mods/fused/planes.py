"""Launch the kernels of a rule: packed codes of all its tiles."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.fused.compiled import Kernel, available, functions_of, kernels, located, pointer
from attn_mods.fused.form import Call, Index, Step, Unfit, form_of
from attn_mods.fused.points import argument_names, table_dtypes
from attn_mods.fused.source import COLUMNS, ROWS, source_of
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import BATCH, HEAD, Grid

# Larger tiles would not fit the registers of one program.
_LARGEST_BLOCK = 1024

# A launch has at most so many programs along its second axis.
_MOST_PAIRS = 65535

_COMMON = ("rows", "columns", "q_len", "kv_len", "q_offset", "kv_offset", "heads")
_PLANES = ("row_bytes", "column_bytes", "column_plane", "whole_rows", "whole_columns")

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Planes:
    """Codes of all tiles, four to a byte, the first in the lowest bits: 0 empty, 1 full, 2 partial.

    (While a kernel works on it, a tile may also be 3, undecided.)

    Attributes:
        codes: uint8; first the lines by rows, each of ``row_bytes``, then from ``column_plane`` on those by columns.
        row_bytes: Bytes of a row.
        column_bytes: Bytes of a column.
        column_plane: Where the columns begin.
        rows: Number of rows.
        columns: Number of columns.
        B: Batches the codes are told apart for.
        H: Heads, likewise.
    """

    codes: Tensor
    row_bytes: int
    column_bytes: int
    column_plane: int
    rows: int
    columns: int
    B: int
    H: int


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The compiled kernels of one form."""

    leaves: Kernel | None
    states: Kernel
    row_slots: int
    column_slots: int
    may_leave_tables: bool


def fused_planes(graph: Graph, grid: Grid, name: str, separate_full_blocks: bool = True) -> Planes | None:
    """The codes of a rule's tiles as its lists tell them apart, by the rule's own kernels.

    Args:
        graph: The recorded rule.
        grid: The tiles.
        name: What a warning or an error calls the rule.
        separate_full_blocks: Whether full tiles are told from partial ones; ragged ones never are.

    Returns:
        None where no kernel is generated for the rule, or while it is being compiled.

    Raises:
        IndexError: A lookup leaves its table.
    """
    try:
        return planes_of_call(form_of(graph, grid), grid, name, separate_full_blocks)
    except Unfit:
        return None


def planes_of_call(call: Call, grid: Grid, name: str, separate_full_blocks: bool = True) -> Planes | None:
    """The same of a rule whose form is known."""
    dependence = call.form[-1].dependence
    pairs = (grid.B if dependence & BATCH else 1, grid.H if dependence & HEAD else 1)
    device = located(grid.device)
    if grid.is_empty or max(grid.block_size) > _LARGEST_BLOCK or pairs[0] * pairs[1] > _MOST_PAIRS:
        return None
    if not available(device) or any(table.device != device for table in call.tables):
        return None
    key = call.form, grid.block_size, device
    made = kernels.get(key, lambda: _make(call.form, grid.block_size, device), name)
    return None if made is None else _launch(made, call, grid, pairs, name, separate_full_blocks)


def _make(form: tuple[Step, ...], block_size: tuple[int, int], device: torch.device) -> _Kernels | None:
    """Generate and compile; None if the form has an operation that cannot be."""
    try:
        source = source_of(form, block_size)
    except Unfit:
        return None
    digest = hashlib.sha256(source.text.encode()).hexdigest()[:16]
    space = functions_of(source.text, f"<attn_mods kernel {digest} {next(_numbers)}>")
    integers, tables = argument_names(form)
    dtypes = table_dtypes(form)
    own = {**dict.fromkeys(integers, "i64"), **{table: pointer(dtypes[table]) for table in tables}}
    common = dict.fromkeys(_COMMON, "i64")
    leaves = None
    if source.row_slots + source.column_slots:
        leaves = Kernel(space["leaves"], {"out": "*i64", "status": "*i32", **common, **own}, {}, device, 4)
    signature = {"codes": "*u8", **dict.fromkeys(_PLANES, "i64")}
    signature |= {"leaf_values": "*i64", "status": "*i32", **common, **own}
    states = Kernel(space["states"], signature, {}, device, 4)
    may_leave = any(isinstance(each, Index) and not each.inside for step in form for each in step.operands)
    return _Kernels(leaves, states, source.row_slots, source.column_slots, may_leave)


def _launch(
    made: _Kernels, call: Call, grid: Grid, pairs: tuple[int, int], name: str, separate_full_blocks: bool
) -> Planes:
    device, rows, columns, count = grid.device, grid.rows, grid.columns, pairs[0] * pairs[1]
    row_bytes, column_bytes = (columns + 3) // 4, (rows + 3) // 4
    column_plane = count * rows * row_bytes
    codes = torch.empty(column_plane + count * columns * column_bytes, dtype=torch.uint8, device=device)
    common = (rows, columns, grid.q_len, grid.kv_len, grid.q_offset, grid.kv_offset, pairs[1])
    arguments = (*common, *call.integers, *call.tables)
    # What a kernel never touches may be any tensor.
    status = torch.zeros(1, dtype=torch.int32, device=device) if made.may_leave_tables else codes
    values = codes
    if made.leaves is not None:
        slots = made.row_slots * rows + made.column_slots * columns
        values = torch.empty(slots * count, dtype=torch.int64, device=device)
        made.leaves.launch((rows + columns, count), values, status, *arguments)
    whole = (grid.q_len // grid.block_size[0], grid.kv_len // grid.block_size[1]) if separate_full_blocks else (0, 0)
    programs = -(-rows // ROWS) * -(-columns // COLUMNS)
    planes = (codes, row_bytes, column_bytes, column_plane, *whole)
    made.states.launch((programs, count), *planes, values, status, *arguments)
    if made.may_leave_tables and int(status):
        raise IndexError(f"{name}: a lookup leaves its table; make the table longer, or clamp the index")
    return Planes(codes, row_bytes, column_bytes, column_plane, rows, columns, *pairs)
