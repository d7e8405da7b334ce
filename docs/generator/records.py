"""Committed records of attention, by card."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.attention.report import Measured, Row, measured, median, verdict

AS_CALLED, AS_GRAPH = "rounds_ms", "graph_rounds_ms"
"""The times of a record: of calls as a user makes them, and of a replayed CUDA graph."""


@functools.cache
def by_card() -> Mapping[str, Sequence[Measured]]:
    """What was measured, under the name of the card or processor."""
    rows: dict[str, list[Row]] = {}
    device = ""
    for path in record.result_files():
        for row in record.read(path):
            if row["record"] == "environment":
                device = row["environment"]["card"] or row["environment"]["processor"]
            rows.setdefault(device, []).append(row)
    return {device: found for device, its_own in rows.items() if (found := measured(its_own))}


def of_entry(name: str) -> Mapping[str, Sequence[Measured]]:
    """What was measured of one entry, the shortest first."""
    found = {
        card: sorted((each for each in all_of_them if each.rows[0]["recipe"] == name), key=length)
        for card, all_of_them in by_card().items()
    }
    return {card: its_own for card, its_own in found.items() if its_own}


def length(one: Measured) -> int:
    """Its number of queries."""
    queries: int = one.rows[0]["shape"]["q_len"]
    return queries


def fastest(one: Measured, what: str, times: str) -> list[Row]:
    """The record with the least time in one pass, then those that are not slower for certain."""
    timed = sorted((row for row in one.of(what) if row.get(times)), key=lambda row: median(row[times]))
    return [row for row in timed if verdict(row, timed, times) != "slower"]
