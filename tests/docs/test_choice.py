"""The page on the choice of auto counts what later runs say of the committed table."""

from __future__ import annotations

import statistics

import pytest

from attn_mods import tuning
from attn_mods.tuning import Table
from benchmarks.attention.tune import Regret, regrets
from docs.generator import choice
from docs.generator.choice import BAR, how_good_the_choice_is, later_runs
from docs.generator.records import runs
from tests.docs.tables import table_below

TABLES = [table for path in tuning.FOLDER.glob("*.json") if (table := tuning.read(path)) is not None]


def found(table: Table) -> list[Regret]:
    return [regret for run in later_runs(table) for regret in regrets(table, run)]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.card)
def test_later_runs_began_after_all_of_the_table(table: Table) -> None:
    begun = {run[0]["run_id"]: run[0]["started_at"] for run in runs()}
    assert set(table.runs) <= begun.keys()
    for run in later_runs(table):
        assert run[0]["started_at"] > max(begun[each] for each in table.runs)
    assert later_runs(Table(table.card, table.torch, table.rows, ("no such run",))) == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.card)
def test_figures(table: Table) -> None:
    page = how_good_the_choice_is()
    rows = table_below(page, f"## {table.card}")
    for row, is_in_table in zip(rows, (True, False), strict=True):
        mine = [each for each in found(table) if each.is_in_table == is_in_table]
        shares = [each.share for each in mine if each.problem is None]
        assert int(row["cases"]) == len(mine)
        assert int(row["within 3%"]) == sum(share <= BAR for share in shares)
        assert int(row["further off"]) == sum(share > BAR for share in shares)
        assert int(row["failed"]) + int(row["not measured"]) == len(mine) - len(shares)
        assert row["mean"] == (f"{statistics.mean(shares):.1%}" if shares else "")
        assert row["worst"] == (f"{max(shares):.1%}" if shares else "")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.card)
def test_every_case_further_off_is_listed(table: Table) -> None:
    listed = table_below(how_good_the_choice_is(), "Every case that is not within that:")
    told = sorted((row["recipe"], row["chosen"], row["fastest"], row["slower by"]) for row in listed)
    further = [each for each in found(table) if each.share > BAR]
    assert told == sorted(
        (each.group.entry, f"`{each.chosen}`", f"`{each.fastest}`", each.problem or f"{each.share:.1%}")
        for each in further
    )


def test_no_later_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "later_runs", lambda table: [])
    assert "No run came later." in how_good_the_choice_is()
