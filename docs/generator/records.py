"""Committed records of attention, by card."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.attention.report import Measured, measured


@functools.cache
def by_card() -> Mapping[str, Sequence[Measured]]:
    """What was measured, under the name of the card or processor."""
    rows = [row for path in record.result_files() for row in record.read(path)]
    found: dict[str, list[Measured]] = {}
    for each in measured(rows):
        if each.run is not None:
            where = each.run["environment"]
            found.setdefault(where["card"] or where["processor"], []).append(each)
    return found


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
