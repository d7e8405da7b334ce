"""Committed records of attention, by card; what the code at hand refuses has no time in them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from benchmarks import record
from benchmarks.attention.report import Measured, Row, measured, median, verdict
from docs.generator.refused import as_at_hand
from docs.generator.words import unusual

COMPARED = "--suite compared"
"""In the command of a run of SDPA beside the flash kernels, on sizes that other runs do not have."""


def by_card() -> Mapping[str, Sequence[Measured]]:
    """What was measured of recipes, under the name of the card or processor."""
    return _of_runs(compared=False)


def compared_by_card() -> Mapping[str, Sequence[Measured]]:
    """What was measured of SDPA beside the flash kernels, likewise."""
    return _of_runs(compared=True)


@functools.cache
def _of_runs(compared: bool) -> Mapping[str, Sequence[Measured]]:
    rows: dict[str, list[Row]] = {}
    for run in runs():
        where = run[0]["environment"]
        if (COMPARED in run[0]["command"]) == compared:
            rows.setdefault(where["card"] or where["processor"], []).extend(run)
    found = {device: [as_at_hand(each) for each in measured(its_own)] for device, its_own in rows.items()}
    return {device: its_own for device, its_own in found.items() if its_own}


@functools.cache
def runs() -> Sequence[list[Row]]:
    """Every committed run: the record of its environment, then its others, which several files may hold."""
    rows = [row for path in record.result_files() for row in record.read(path)]
    found = {row["run_id"]: [row] for row in rows if row["record"] == "environment"}
    for row in rows:
        if row["record"] != "environment" and row["run_id"] in found:
            found[row["run_id"]].append(row)
    return list(found.values())


def of_entry(name: str) -> Mapping[str, Sequence[Measured]]:
    """What was measured of one entry, the shortest first, of one length the usual parameters."""
    found = {
        card: sorted((each for each in all_of_them if each.rows[0]["recipe"] == name), key=_by_length_and_case)
        for card, all_of_them in by_card().items()
    }
    return {card: its_own for card, its_own in found.items() if its_own}


def _by_length_and_case(one: Measured) -> tuple[int, str]:
    return length(one), case(one)


def length(one: Measured) -> int:
    """Its number of queries."""
    queries: int = one.rows[0]["shape"]["q_len"]
    return queries


def case(one: Measured) -> str:
    """The name of its parameters; nothing if they are the usual ones."""
    return unusual(one.rows[0]["case"])


def is_alone(one: Measured, what: str, times: str) -> bool:
    """Whether there is but one such time: then nothing is the faster."""
    return sum(bool(row.get(times)) for row in one.of(what)) == 1


def fastest(one: Measured, what: str, times: str) -> list[Row]:
    """The record with the least time in one pass, then those that are not slower for certain."""
    timed = sorted((row for row in one.of(what) if row.get(times)), key=lambda row: median(row[times]))
    return [row for row in timed if verdict(row, timed, times) != "slower"]
