"""The page on the choice of auto counts what the committed runs say of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from attn_mods import tuning
from attn_mods.tuning import Table
from benchmarks.attention.cases import recipe_name
from benchmarks.attention.tune import (
    NOT_MEASURED,
    Regret,
    regrets_without_own_recipe,
    regrets_without_own_sizes,
    table_of,
)
from docs.generator import choice
from docs.generator.choice import BAR, NONE, by_earlier_runs, foretold, how_good_the_choice_is
from docs.generator.records import runs
from tests.docs.tables import table_below

COMMITTED = [table for path in tuning.FOLDER.glob("*.json") if (table := tuning.read(path)) is not None]


def named(table: Table) -> str:
    """Its card, and of how many runs it is."""
    return f"{table.card}, {len(table.runs)} runs"


def judged(table: Table) -> list[Regret]:
    return [regret for _, its_own in by_earlier_runs(table) for regret in its_own]


def labelled(regret: Regret) -> str:
    """A case as the tables name it."""
    group = regret.group
    return group.entry if group.case == "bench" else f"{group.entry}, {group.case}"


def page_of(table: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page, if that were the only table."""
    monkeypatch.setattr(tuning, "read", lambda path: table)
    return how_good_the_choice_is()


@pytest.mark.parametrize("table", COMMITTED, ids=named)
def test_each_run_is_judged_by_what_was_measured_before_it(table: Table) -> None:
    begun = {run[0]["run_id"]: run[0]["started_at"] for run in runs()}
    rows_of = {run[0]["run_id"]: run for run in runs() if run[0]["run_id"] in table.runs}
    found = by_earlier_runs(table)
    assert min(table.runs, key=begun.__getitem__) not in {run["run_id"] for run, _ in found}
    for run, its_own in found:
        before = [row for name, rows in rows_of.items() if begun[name] < run["started_at"] for row in rows]
        held = {(row.recipe, row.what, row.shapes) for row in table_of(before).rows}
        for regret in its_own:
            group = regret.group
            assert regret.is_in_table == ((recipe_name(group), regret.what, group.shape.shapes) in held)


WITHOUT = [regrets_without_own_sizes, regrets_without_own_recipe]


@pytest.mark.parametrize("without", WITHOUT)
@pytest.mark.parametrize("table", COMMITTED, ids=named)
def test_each_case_is_foretold_by_others(table: Table, without: Callable[..., Iterator[Regret]]) -> None:
    found = foretold(table, without)
    assert found
    for regret in found:
        assert not regret.is_in_table


@pytest.mark.parametrize("table", COMMITTED, ids=named)
def test_figures(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table_below(page_of(table, monkeypatch), f"## {table.card} {{ data-search-exclude }}")
    cases = [
        [each for each in judged(table) if each.is_in_table],
        [each for each in judged(table) if not each.is_in_table],
        *(foretold(table, without) for without in WITHOUT),
    ]
    for row, mine in zip(rows, cases, strict=True):
        shares = [each.share for each in mine if each.problem is None]
        assert int(row["cases"]) == len(mine)
        assert int(row["within 3%"]) == sum(share <= BAR for share in shares)
        assert int(row["further off"]) == sum(share > BAR for share in shares)
        assert int(row["failed"]) + int(row["not measured"]) == len(mine) - len(shares)
        assert row["mean"] == (f"{statistics.mean(shares):.1%}" if shares else "")
        assert row["worst"] == (f"{max(shares):.1%}" if shares else "")


@pytest.mark.parametrize("table", COMMITTED, ids=named)
def test_every_case_further_off_is_listed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(table, monkeypatch)
    for heading, found in (
        ("Every case, by the runs before its own, that is not within that:", judged(table)),
        ("Every case, without its sizes in the table, that is not within that:", foretold(table, WITHOUT[0])),
        ("Every case, without its recipe in the table, that is not within that:", foretold(table, WITHOUT[1])),
    ):
        further = [each for each in found if each.share > BAR]
        if not further:
            assert f"{heading}\n\n{NONE}" in page
            continue
        listed = table_below(page, heading)
        told = sorted((row["recipe"], row["chosen"], row["fastest"], row["slower by"]) for row in listed)
        assert told == sorted(
            (labelled(each), f"`{each.chosen}`", f"`{each.fastest}`", each.problem or f"{each.share:.1%}")
            for each in further
        )


def test_nothing_before_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "by_earlier_runs", lambda table: [])
    assert how_good_the_choice_is().count(f"\n\n{NONE}\n") == 2


def test_a_run_says_how_many_of_its_cases_it_did_not_measure() -> None:
    run = {"run_id": "a", "started_at": "today", "command": "measure"}
    near, far = (SimpleNamespace(share=share, problem=None) for share in (BAR, 2 * BAR))
    unmeasured = SimpleNamespace(share=math.inf, problem=NOT_MEASURED)
    assert choice._judged(run, [near, far]) == "run a, today, 1 of 2 cases within 3%: `measure`"
    assert choice._judged(run, [near, unmeasured]) == "run a, today, 1 of 1 cases within 3%, 1 not measured: `measure`"
