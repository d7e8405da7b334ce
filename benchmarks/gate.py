"""Whether lists are right, before anything is timed: against torch, against the CPU, or some rows against the calculus.

Up to 32,768 tokens the truth is eager torch.create_block_mask on the same device, or the compiled one if the eager one
does not fit there. Up to 131,072 it is the calculus on the CPU, in pure torch. Beyond, 64 rows of blocks are held
against that calculus, and the lists by columns against those by rows.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import LIST_NAMES, create_block_mask, listed_blocks
from attn_mods.tiles import FULL, MIXED, Grid, analyse
from benchmarks.measured_masks import MASKS

BLOCK_SIZE = 128
AGAINST_TORCH, AGAINST_THE_CPU = 32_768, 131_072
"""The longest lengths that are compared whole, list for list."""

ROWS = 64
GATE_SEED = 0

Rows = dict[int, dict[int, Tensor]]
"""For each row of blocks the codes' plane of blocks: {row: {code: bool [B, H, columns]}}."""


def difference(got: BlockMask, expected: BlockMask) -> str | None:
    """The first list that differs, or None; what stands behind a count is not read."""
    for counts, indices in zip(LIST_NAMES[::2], LIST_NAMES[1::2], strict=True):
        mine, theirs = (getattr(each, counts) for each in (got, expected))
        if (mine is None) != (theirs is None):
            return f"{counts} is missing" if mine is None else f"{counts} should not be there"
        if mine is None:
            continue
        theirs = theirs.to(mine.device)
        if not torch.equal(mine, theirs):
            return f"{counts} differs"
        mine_listed, theirs_listed = getattr(got, indices), getattr(expected, indices).to(mine.device)
        if mine_listed.shape != theirs_listed.shape:
            return f"{indices} has another shape"
        counted = torch.arange(theirs_listed.shape[-1], device=mine.device) < theirs[..., None]
        if not torch.equal(mine_listed[counted], theirs_listed[counted]):
            return f"{indices} differs"
    return None


@dataclass
class Gate:
    """The truths of one run, each found once.

    Attributes:
        device: Where the lists are made that are held against them.
        against_torch: The longest length that torch itself judges.
        against_the_cpu: The longest length that is compared whole.
    """

    device: str
    against_torch: int = AGAINST_TORCH
    against_the_cpu: int = AGAINST_THE_CPU
    _whole: dict[tuple[str, int], tuple[str, BlockMask]] = field(default_factory=dict)
    _rows: dict[tuple[str, int], Rows] = field(default_factory=dict)

    def check(self, mask: str, got: BlockMask) -> tuple[str | None, str]:
        """What is wrong with the lists of a mask over the values of ``GATE_SEED``, or None; and what was compared."""
        length = got.seq_lengths[0]
        key = mask, length
        if length > self.against_the_cpu:
            if key not in self._rows:
                self._rows[key] = calculated_rows(mask, length)
            return row_difference(got, self._rows[key]), f"spot-checked: {ROWS} rows of blocks equal the calculus"
        if key not in self._whole:
            self._whole[key] = self._truth(mask, length)
        name, expected = self._whole[key]
        return difference(got, expected), f"lists equal {name}"

    def _truth(self, mask: str, length: int) -> tuple[str, BlockMask]:
        if length > self.against_torch:
            rule = MASKS[mask].fresh_closure(length, GATE_SEED, "cpu")
            batch = MASKS[mask].batch
            return "the calculus on the CPU", create_block_mask(rule, batch, 1, length, length, "cpu", BLOCK_SIZE)
        build = flex_attention.create_block_mask
        rule = MASKS[mask].fresh_closure(length, GATE_SEED, self.device)
        arguments = rule, MASKS[mask].batch, 1, length, length, self.device, BLOCK_SIZE
        try:
            return "eager torch", build(*arguments).to("cpu")
        except torch.OutOfMemoryError:
            give_memory_back()
        return "compiled torch", torch.compile(build)(*arguments).to("cpu")


def give_memory_back() -> None:
    """Free what a failed call left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def calculated_rows(mask: str, length: int) -> Rows:
    """Some rows of blocks, the first and the last among them, each by the calculus on the CPU."""
    rule = MASKS[mask].fresh_closure(length, GATE_SEED, "cpu")
    all_rows = -(-length // BLOCK_SIZE)
    drawn = numpy.random.default_rng(length).choice(all_rows, min(ROWS, all_rows), replace=False)
    rows: Rows = {}
    for row in sorted({0, all_rows - 1, *drawn.tolist()[2:]}):
        queries = min(BLOCK_SIZE, length - row * BLOCK_SIZE)
        block = BLOCK_SIZE, BLOCK_SIZE
        grid = Grid(queries, length, block, B=MASKS[mask].batch, q_offset=row * BLOCK_SIZE)
        codes = analyse(rule, grid).states.codes[:, :, 0].expand(grid.B, 1, -1)
        rows[row] = {code: codes == code for code in (MIXED, FULL)}
    return rows


def row_difference(got: BlockMask, rows: Rows) -> str | None:
    """The first list whose rows differ from those calculated, or whose columns say something else than its rows.

    Lengths are whole blocks: of a ragged one the calculus says FULL where torch lists a partial block.
    """
    for code, pair in ((MIXED, ""), (FULL, "full_")):
        counts, indices = (getattr(got, f"{pair}kv_{part}") for part in ("num_blocks", "indices"))
        for row, planes in rows.items():
            wanted = [plane.nonzero()[:, 0] for plane in planes[code].flatten(0, 1)]
            if not all(map(torch.equal, _listed_in_row(counts, indices, row), wanted)):
                return f"{pair}kv_indices differs in row {row}"
        by_columns = (getattr(got, f"{pair}q_{part}") for part in ("num_blocks", "indices"))
        if not _same_blocks(listed_blocks(counts, indices), *by_columns):
            return f"{pair}q_indices differs from {pair}kv_indices"
    return None


def _listed_in_row(counts: Tensor, indices: Tensor, row: int) -> list[Tensor]:
    """The blocks that one row lists, for every batch and head."""
    numbers = counts[:, :, row].flatten().tolist()
    lines = indices[:, :, row].flatten(0, 1)
    return [line[:number].long().cpu() for line, number in zip(lines, numbers, strict=True)]


def _same_blocks(blocks: Tensor, counts: Tensor, indices: Tensor) -> bool:
    """Whether the lists by columns hold these blocks, in ascending order."""
    rising = (indices[..., 1:] > indices[..., :-1]) | (
        torch.arange(1, indices.shape[-1], device=indices.device) >= counts[..., None]
    )
    return bool(rising.all()) and torch.equal(listed_blocks(counts, indices), blocks.transpose(-2, -1))
