"""From records to the table that "auto" goes by, and how far off its choice is in a later run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attn_mods import backends
from attn_mods.backends import Shapes
from attn_mods.dispatch import ranked
from attn_mods.tuning import FORWARD, TRAINING, Measured, Table, nearest
from attn_mods.tuning.typical import BUILT_IN, REFERENCE, look_up, typical
from benchmarks.attention.cases import USUAL_CASE, Group, Shape, recipe_name
from benchmarks.attention.measure import key_of
from benchmarks.attention.refusals import refusals
from benchmarks.attention.report import median

Row = dict[str, Any]
PASSES = (FORWARD, TRAINING)
CARD = torch.device("cuda", 0)
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Regret:
    """How much slower a choice was than the fastest, in one group and pass.

    Attributes:
        group: What was measured.
        what: The pass.
        chosen: The backend that the table leads to, of those that this run does not say to be unsupported; what it did
            not ask, the code at hand says.
        fastest: The fastest backend in this run.
        share: How much longer the chosen one took: 0.03 is 3 %; infinite without a time.
        is_in_table: Whether the table holds these very sizes.
        problem: Why the chosen one has no time in this run; None if it has.
    """

    group: Group
    what: str
    chosen: str
    fastest: str
    share: float
    is_in_table: bool
    problem: str | None = None


def table_of(records: Iterable[Row]) -> Table:
    """The table of one card: of each recipe, shape and pass the run that measured most backends, the last of several.

    A call does not say by which case its parameters are; the table is of the usual ones.

    Args:
        records: Of whatever runs, in any order.

    Raises:
        ValueError: Records of no card, or of several, or none of attention.
    """
    records = list(records)
    begun = sorted((row for row in records if row["record"] == "environment"), key=lambda run: str(run["started_at"]))
    runs = {run["run_id"]: run["environment"] for run in begun}
    places = {run_id: place for place, run_id in enumerate(runs)}
    records.sort(key=lambda row: places.get(row["run_id"], -1))
    cards = {run["card"] for run in runs.values()}
    if len(cards) != 1 or None in cards:
        names = ", ".join(sorted(str(card) for card in cards)) or "no run"
        raise ValueError(f"tune: the records must be of one card, got {names}; name the files of one")
    chosen: dict[tuple[object, ...], Measured] = {}
    for row in _measured(records):
        key = row.recipe, row.what, row.shapes, row.dtype
        if key not in chosen or len(row.ms) >= len(chosen[key].ms):
            chosen[key] = row
    if not chosen:
        raise ValueError("tune: the records must be of attention, got none; measure some with python -m benchmarks run")
    rows = _with_comparable_hosts(chosen.values())
    return Table(next(iter(cards)), next(reversed(runs.values()))["torch"], tuple(rows), tuple(runs))


def _with_comparable_hosts(rows: Collection[Measured]) -> Iterator[Measured]:
    """The rows with host times as if the host had never been busier with other things than it mostly is.

    It is slower at some times than at others, but alike for all backends of a row, which were timed in turns: where the
    reference took longer than its median of that pass, all are scaled by as much. And as no call takes less than the
    host is busy with it, what a call took bounds its host time.
    """
    hosts: dict[str, list[float]] = {}
    for row in rows:
        if REFERENCE in row.host_ms:
            hosts.setdefault(row.what, []).append(row.host_ms[REFERENCE])
    usual = {what: statistics.median(its_own) for what, its_own in hosts.items()}
    for row in rows:
        own = row.host_ms.get(REFERENCE)
        times = min(1.0, usual[row.what] / own) if own else 1.0
        yield replace(row, host_ms={name: min(ms * times, row.ms[name]) for name, ms in row.host_ms.items()})


def regrets(table: Table, records: Iterable[Row]) -> Iterator[Regret]:
    """What "auto" would have lost in a run by going by a table, where it had another to lose by."""
    return _regrets(records, lambda about: look_up(table, about.recipe, about.has_score, *_call(about)))


def regrets_without_own_sizes(table: Table, records: Iterable[Row]) -> Iterator[Regret]:
    """The same for each case by the table without that case's sizes: how it foretells what it does not hold.

    A case of which it then holds nothing alike is left out.
    """

    def by_other_sizes(about: Measured) -> Measured | None:
        return nearest(_without(table, lambda row: row.shapes == about.shapes), about.recipe, *_call(about))

    return _regrets(records, by_other_sizes, only_if_any=True)


def regrets_without_own_recipe(table: Table, records: Iterable[Row]) -> Iterator[Regret]:
    """The same for each case by the table without that case's recipe: how it foretells a rule of one's own.

    Masks that kernels have arguments for are left out: they are no one's own.
    """

    def by_other_recipes(about: Measured) -> Measured | None:
        if about.recipe in BUILT_IN:
            return None
        return typical(_without(table, lambda row: row.recipe == about.recipe), about.has_score, *_call(about))

    return _regrets(records, by_other_recipes, only_if_any=True)


def _call(about: Measured) -> tuple[Shapes, torch.dtype, bool]:
    """What of a call a table is asked by: sizes, dtype, and whether gradients are wanted."""
    return about.shapes, getattr(torch, about.dtype), about.what == TRAINING


def _without(table: Table, gone: Callable[[Measured], bool]) -> Table:
    return replace(table, rows=tuple(row for row in table.rows if not gone(row)))


def _regrets(
    records: Iterable[Row], gone_by: Callable[[Measured], Measured | None], only_if_any: bool = False
) -> Iterator[Regret]:
    for group, rows in _groups(records):
        measured = _measurement(group, rows)
        by_table = gone_by(measured) if measured.ms else None
        asked_one = len({row["backend"] for row in rows}) == 1  # as a run does that compares options of a kernel
        if not measured.ms or asked_one or (by_table is None and only_if_any):
            continue
        refused = dict.fromkeys(refusals(group, CARD.type, measured.what == TRAINING), "unsupported")
        status = refused | {row["backend"]: row["status"] for row in rows}
        recipe = group.to_ask_about().recipe("cpu")
        candidates = (each.name for each in ranked(by_table, recipe, measured.shapes, CARD))
        chosen = next(name for name in candidates if status.get(name) != "unsupported")
        if [*measured.ms] == [chosen]:
            continue  # held against nothing
        fastest = min(measured.ms, key=measured.ms.__getitem__)
        share = measured.ms.get(chosen, math.inf) / measured.ms[fastest] - 1
        problem = None if chosen in measured.ms else status.get(chosen, NOT_MEASURED)
        there = by_table is not None and (by_table.recipe, by_table.shapes) == (measured.recipe, measured.shapes)
        yield Regret(group, measured.what, chosen, fastest, share, there, problem)


def _measured(records: Iterable[Row]) -> Iterator[Measured]:
    """The times of each group and pass of one run, with the usual parameters."""
    for group, rows in _groups(records):
        measured = _measurement(group, rows)
        if measured.ms and group.case == USUAL_CASE:
            yield measured


def _groups(records: Iterable[Row]) -> Iterator[tuple[Group, list[Row]]]:
    """The records of backends of each group and pass in one run."""
    names = {each.name for each in backends.ALL}
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in records:
        if row["record"] == "attention" and row["what"] in PASSES and row["backend"] in names:
            found.setdefault((row["run_id"], row["what"], *key_of(row)), []).append(row)
    for rows in found.values():
        yield Group(rows[0]["recipe"], rows[0]["case"], Shape(**rows[0]["shape"])), rows


def _measurement(group: Group, rows: Sequence[Row]) -> Measured:
    """The times of the backends that computed a group in one pass."""
    timed = [row for row in rows if row["status"] == "ok"]
    return Measured(
        recipe_name(group),
        rows[0]["what"],
        group.shape.shapes,
        group.shape.dtype,
        group.has_score,
        ms={row["backend"]: median(row["rounds_ms"]) for row in timed},
        device_ms={row["backend"]: median(row["graph_rounds_ms"]) for row in timed if "graph_rounds_ms" in row},
        host_ms={row["backend"]: row["host_ms"] for row in timed if "host_ms" in row},
    )
