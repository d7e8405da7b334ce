"""Packed codes to block lists, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.fused.compiled import Kernel, kernels, located
from attn_mods.fused.planes import Planes
from attn_mods.tiles.grid import Grid

# Bytes of codes that one program reads at once, for lines up to so many and for longer ones.
_BYTES = (32, 256)

_BOTH, _COUNT, _WRITE = 0, 1, 2

_LISTS = tuple(
    f"{side}_{kind}" for side in ("row", "column") for kind in ("counts", "indices", "full_counts", "full_indices")
)
_NUMBERS = ("lines", "row_length", "column_length", "row_bytes", "column_bytes", "column_plane")
_SIGNATURE = (
    {"planes": "*u8"} | dict.fromkeys((*_LISTS, "widest"), "*i32") | dict.fromkeys((*_NUMBERS, "row_width"), "i64")
) | {"column_width": "i64"}


@dataclass(slots=True)
class _Side:
    """The lists by rows, or by columns: for each kind of tiles, partial and maybe full, counts and indices.

    Each list has memory of its own: a compiled function is compiled anew for another offset into shared memory.
    """

    shape: tuple[int, int, int]
    length: int
    width: int
    counts: list[Tensor]
    indices: list[Tensor]

    @classmethod
    def of(cls, shape: tuple[int, int, int], length: int, kinds: int, device: torch.device) -> _Side:
        """Counts to be filled, and no indices yet."""
        counts = [torch.empty(shape, dtype=torch.int32, device=device) for _ in range(kinds)]
        return cls(shape, length, length, counts, [])

    def make_indices(self, width: int) -> None:
        """Indices to be filled, stored so wide."""
        self.width = width
        batch, heads, lines = self.shape
        for counts in self.counts:
            if width == self.length:
                self.indices.append(counts.new_empty((*self.shape, self.length)))
                continue
            # The last line can be read to its length.
            storage = counts.new_empty(batch * heads * lines * width + self.length - width)
            storage[batch * heads * lines * width :].zero_()
            strides = (heads * lines * width, lines * width, width, 1)
            self.indices.append(storage.as_strided((*self.shape, self.length), strides))

    def arguments(self) -> list[Tensor]:
        """Counts and indices of partial tiles and of full ones; what there is none of is never touched."""
        lists = [each for pair in zip(self.counts, self.indices or self.counts, strict=True) for each in pair]
        return lists if len(lists) == 4 else lists * 2

    def lists(self, kind: int, grid: Grid) -> list[Tensor]:
        """Counts and indices for all batches and heads; what b or h leave alone is shared."""
        counts, indices = self.counts[kind], self.indices[kind]
        if self.shape[:2] == (grid.B, grid.H):
            return [counts, indices]
        return [counts.expand(grid.B, grid.H, -1), indices.expand(grid.B, grid.H, -1, -1)]


def lists_of_planes(
    planes: Planes, grid: Grid, separate_full_blocks: bool, compact: bool = False
) -> list[Tensor] | None:
    """The lists of a BlockMask, for all batches and heads of a grid.

    Args:
        planes: The codes.
        grid: The tiles.
        separate_full_blocks: Whether full tiles have lists of their own.
        compact: Whether each list is stored only as wide as the longest of its side, partial and full ones equally.
            Waits for the device once.

    Returns:
        Counts and indices by rows, by columns, and those of full tiles likewise; None while the kernel that fills them
        is being compiled.
    """
    device = located(grid.device)
    longest = max(planes.row_bytes, planes.column_bytes)
    at_once = next((size for size in _BYTES if longest <= size), _BYTES[-1])
    phases = (_COUNT, _WRITE) if compact else (_BOTH,)
    fill = [_kernel(device, phase, separate_full_blocks, at_once) for phase in phases]
    if any(kernel is None for kernel in fill):
        return None
    kinds = 2 if separate_full_blocks else 1
    rows = _Side.of((planes.B, planes.H, planes.rows), planes.columns, kinds, device)
    columns = _Side.of((planes.B, planes.H, planes.columns), planes.rows, kinds, device)
    widths = [rows.length, columns.length]
    if compact:
        widest = torch.zeros(2, dtype=torch.int32, device=device)
        _launch(fill[0], planes, rows, columns, widest)
        widths = [max(1, width) for width in widest.tolist()]
    rows.make_indices(widths[0])
    columns.make_indices(widths[1])
    _launch(fill[-1], planes, rows, columns, rows.counts[0])
    return [each for kind in range(kinds) for side in (rows, columns) for each in side.lists(kind, grid)]


def _kernel(device: torch.device, phase: int, separate_full_blocks: bool, at_once: int) -> Kernel | None:
    """The kernel that fills lists: one for all rules."""

    def make() -> Kernel:
        from attn_mods.kernels.packed_lists import fill_lists

        constants = {"PHASE": phase, "SEPARATE": separate_full_blocks, "BYTES": at_once}
        return Kernel(fill_lists, _SIGNATURE, constants, device, 4)

    return kernels.get(("lists", device, phase, separate_full_blocks, at_once), make, "block lists")


def _launch(fill: Kernel | None, planes: Planes, rows: _Side, columns: _Side, widest: Tensor) -> None:
    """Fill the lists of all lines."""
    if fill is None:
        return
    pairs = planes.B * planes.H
    lines = pairs * planes.rows
    fill.launch(
        (lines + pairs * planes.columns, 1), planes.codes, *rows.arguments(), *columns.arguments(), widest, lines,
        planes.columns, planes.rows, planes.row_bytes, planes.column_bytes, planes.column_plane, rows.width,
        columns.width,
    )  # fmt: skip
