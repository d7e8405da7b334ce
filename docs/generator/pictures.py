"""Pictures as inline SVG in the colour of the text around them."""

from __future__ import annotations

import html
from collections.abc import Iterator

import torch
from torch import Tensor

from attn_mods.entry import Entry
from attn_mods.mask import Mask
from docs.generator.examples import first, input_of, matrix
from docs.generator.frames import heat

TOKENS = 24
SHADES = 5


def picture(entry: Entry, label: str = "") -> str:
    """The entry at 24 tokens: visible pairs of a mask, or shades of a score.

    Args:
        entry: The entry.
        label: What a screen reader says; without it the picture is decoration.
    """
    example = first(entry, TOKENS)
    values = matrix(example, input_of(example))
    if values is None:
        raise LookupError(f"{entry.name}: the first head of its first sample has no picture")
    if isinstance(example.part, Mask):
        shapes = f'<path d="{_path(values)}"/>'
    else:
        shapes = _shaded((heat(values).levels / 3).round().long())
    q_len, kv_len = values.shape
    spoken = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    return f'<svg class="am-picture" viewBox="0 0 {kv_len} {q_len}" {spoken}>{shapes}</svg>'


def rectangles(visible: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(column, row, width, height) that together cover the True positions once: equal runs in rows below each other."""
    open_runs: dict[tuple[int, int], int] = {}
    rows = [*visible.tolist(), []]
    for row, marks in enumerate(rows):
        runs = set(_runs(marks))
        for run in [run for run in open_runs if run not in runs]:
            top = open_runs.pop(run)
            yield run[0], top, run[1], row - top
        for run in runs:
            open_runs.setdefault(run, row)


def _runs(marks: list[bool]) -> Iterator[tuple[int, int]]:
    """(start, width) of the runs of True."""
    start = None
    for column, mark in enumerate([*marks, False]):
        if mark and start is None:
            start = column
        elif not mark and start is not None:
            yield start, column - start
            start = None


def _path(visible: Tensor) -> str:
    return "".join(f"M{x} {y}h{width}v{height}h-{width}z" for x, y, width, height in sorted(rectangles(visible)))


def _shaded(steps: Tensor) -> str:
    shades = [(step, steps == step) for step in range(1, SHADES + 1)]
    return "".join(
        f'<path fill-opacity="{step / SHADES:g}" d="{_path(where)}"/>' for step, where in shades if torch.any(where)
    )
