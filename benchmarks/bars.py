"""What building a BlockMask on a card is held to, and how far a run is from it; entries and closures alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from benchmarks.measured_masks import PRINCIPAL

Cell = dict[str, Any]
MEGABYTE = 1e6

SPEED = ((131_072, 60.0, 0.25), (32_768, 3.0, 0.2))
"""Length, times faster than compiled torch, milliseconds."""

FIRST_MS = 60.0
LONGEST, LONGEST_MS, LONGEST_MB = 1_048_576, 0.5, 64.0
PEAK_TO_LISTS = 1.5

ENTRY, CLOSURE, COMPILED = "attn_mods", "attn_mods_closure", "torch_compiled"
FULL_WIDTH = {ENTRY: (ENTRY, "attn_mods_full"), CLOSURE: (CLOSURE, "attn_mods_closure_full")}


@dataclass(frozen=True)
class Value:
    """A number with what it is of, or why there is none."""

    number: float | None
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        subject: What is held to it.
        limit: The number.
        unit: Its unit, as it is written behind the number.
        at_least: Whether more is better.
        entry: What the entry reached.
        closure: What a user's closure of the same rule reached.
    """

    subject: str
    limit: float
    unit: str
    at_least: bool
    entry: Value
    closure: Value

    @property
    def required(self) -> str:
        """The bar as text."""
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"

    @property
    def is_silent(self) -> bool:
        """Whether the run has neither a number nor a reason for it."""
        return all(value.number is None and not value.note for value in (self.entry, self.closure))

    def verdict(self, value: Value) -> str:
        """Met, missed by how much of the bar, or not measured."""
        note = f" ({value.note})" if value.note else ""
        if value.number is None:
            return f"not measured{note}"
        over = (self.limit - value.number if self.at_least else value.number - self.limit) / self.limit
        reached = f"{digits(value.number)}{self.unit}{note}"
        return f"met: {reached}" if over <= 0 else f"missed by {_percent(over)}: {reached}"


def digits(number: float) -> str:
    """Three digits or more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.3g}"


def _percent(share: float) -> str:
    return f"{max(share, 0.001):.1%}" if share < 0.1 else f"{share:,.0%}"


def median(cell: Cell) -> float:
    """Median of the samples in milliseconds."""
    return float(numpy.median(cell["samples_ms"]))


class Cells:
    """The cells of one run by mask, length and method."""

    def __init__(self, records: Iterable[Cell]) -> None:
        build = (row for row in records if row["record"] == "cell" and row["what"] == "block_mask_build")
        self.all = {(row["recipe"], row["shape"]["q_len"], row["backend"]): row for row in build}

    def value(self, mask: str, length: int, method: str, number: Callable[[Cell], float]) -> Value:
        """A number of one cell, or why it has none."""
        row = self.all.get((mask, length, method))
        if row is None:
            return Value(None)
        if row["status"] != "ok":
            return Value(None, f"{method} {row['status'].replace('_', ' ')}: {row['message']}")
        return Value(number(row))

    def faster(self, mask: str, length: int, method: str) -> Value:
        """How many times faster than compiled torch a method is, in this run."""
        ours, theirs = (self.value(mask, length, name, median) for name in (method, COMPILED))
        if ours.number is None or theirs.number is None:
            return ours if ours.number is None else theirs
        return Value(theirs.number / ours.number)

    def worst(self, numbers: Iterable[tuple[Cell, float]]) -> Value:
        """The largest number, and of which cell it is."""
        largest = max(numbers, key=lambda each: each[1], default=None)
        if largest is None:
            return Value(None)
        row, number = largest
        return Value(number, f"{row['recipe']}, {row['shape']['q_len']:,} tokens, {row['backend']}")

    def measured(self, *methods: str) -> Iterator[Cell]:
        """The cells of some methods that have numbers, in the order in which they were measured."""
        return (row for row in self.all.values() if row["backend"] in methods and row["status"] == "ok")


def bars(records: Iterable[Cell]) -> list[Bar]:
    """Every bar with what a run reached."""
    cells = Cells(records)
    return [*_speed(cells), _first(cells), *_longest(cells), *_memory(cells)]


def _speed(cells: Cells) -> Iterator[Bar]:
    for length, times, milliseconds in SPEED:
        for mask in PRINCIPAL:
            subject = f"{mask}, {length:,} tokens"
            faster = (cells.faster(mask, length, method) for method in (ENTRY, CLOSURE))
            yield Bar(f"{subject}: faster than compiled torch", times, "x", True, *faster)
            taken = (cells.value(mask, length, method, median) for method in (ENTRY, CLOSURE))
            yield Bar(f"{subject}: time", milliseconds, " ms", False, *taken)


def _first(cells: Cells) -> Bar:
    """An entry's first mask is the first call of the first cell of its mask: later lengths find its kernel."""
    earliest: dict[str, Cell] = {}
    for row in cells.measured(ENTRY):
        earliest.setdefault(row["recipe"], row)
    entry = cells.worst((row, row["first_ms"]) for row in earliest.values())
    closure = cells.worst((row, median(row)) for row in cells.measured("attn_mods_first"))
    return Bar("the first mask of a new rule, worst", FIRST_MS, " ms", False, entry, closure)


def _longest(cells: Cells) -> Iterator[Bar]:
    subject = f"sliding_window, {LONGEST:,} tokens, compact lists"
    quantities: tuple[tuple[str, float, str, Callable[[Cell], float]], ...] = (
        ("time", LONGEST_MS, " ms", median),
        ("peak memory", LONGEST_MB, " MB", lambda row: row["peak_bytes"] / MEGABYTE),
    )
    for name, limit, unit, number in quantities:
        methods = f"{ENTRY}_compact", f"{CLOSURE}_compact"
        values = (cells.value("sliding_window", LONGEST, method, number) for method in methods)
        yield Bar(f"{subject}: {name}", limit, unit, False, *values)


def _memory(cells: Cells) -> Iterator[Bar]:
    lengths = sorted({length for _, length, _ in cells.all})
    for length in lengths:
        values = []
        for methods in FULL_WIDTH.values():
            rows = (row for row in cells.measured(*methods) if row["shape"]["q_len"] == length and row["full_width"])
            values.append(cells.worst((row, row["peak_bytes"] / row["lists_bytes"]) for row in rows))
        subject = f"full-width lists, {length:,} tokens, worst: peak memory to lists"
        yield Bar(subject, PEAK_TO_LISTS, "x", False, *values)
