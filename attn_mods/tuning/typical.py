"""What the measured recipes of a kind take: for one that was not measured, such as a rule of your own."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import torch

from attn_mods.backends import Shapes
from attn_mods.tuning import Measured, Table, distance, nearest, rows_for

BUILT_IN = frozenset({"full", "causal"})
"""Masks that every kernel has an argument for: what it takes there says nothing of another mask."""

REFERENCE = "flex"
"""The backend that computes every recipe: the others' times are held against it, recipe by recipe."""

FEWEST = 5
"""As many recipes must have been measured on the same sizes."""


@dataclass(frozen=True)
class Typical(Measured):
    """Recipes of a kind on one shape: medians of their times with each backend, as multiples of the reference's."""

    def __str__(self) -> str:
        return f"the median of {self.recipe}, {self.sizes}"


def look_up(
    table: Table, recipe: str, has_score: bool, shapes: Shapes, dtype: torch.dtype, training: bool
) -> Measured | None:
    """What "auto" goes by: the recipe's own nearest measurement, else what recipes of its kind take.

    Args:
        table: The measurements.
        recipe: Name of the recipe.
        has_score: Whether it has a score.
        shapes: Sizes of the call.
        dtype: Of q, k and v.
        training: Whether gradients are wanted.
    """
    return nearest(table, recipe, shapes, dtype, training) or typical(table, has_score, shapes, dtype, training)


@functools.lru_cache(maxsize=1024)
def typical(table: Table, has_score: bool, shapes: Shapes, dtype: torch.dtype, training: bool) -> Typical | None:
    """Medians of all recipes with a score, or of all without, on the nearest sizes that enough were measured on."""
    found: dict[tuple[Shapes, str], list[Measured]] = defaultdict(list)
    for row in rows_for(table, dtype, training):
        if row.has_score == has_score and row.recipe not in BUILT_IN and REFERENCE in row.ms:
            found[row.shapes, row.dtype].append(row)
    enough = [rows for rows in found.values() if len(rows) >= FEWEST]
    if not enough:
        return None
    rows = min(enough, key=lambda each: distance(each[0], shapes, dtype))
    return Typical(
        f"{len(rows)} {'scores' if has_score else 'masks'}",
        rows[0].what,
        rows[0].shapes,
        rows[0].dtype,
        has_score,
        ms=_medians(row.ms for row in rows),
        device_ms=_medians(row.ms | row.device_ms for row in rows),
        host_ms=_medians(row.host_ms for row in rows),
    )


def _medians(recipes: Iterable[dict[str, float]]) -> dict[str, float]:
    """By backend, from the times of each recipe; those without the reference's do not count."""
    known = [times for times in recipes if times.get(REFERENCE)]
    multiples: dict[str, list[float]] = defaultdict(list)
    for times in known:
        for name, ms in times.items():
            multiples[name].append(ms / times[REFERENCE])
    return {name: median(times[REFERENCE] for times in known) * median(each) for name, each in multiples.items()}
