"""The page on the choice of auto counts what later runs say of the committed table."""

from __future__ import annotations

import re

from attn_mods import tuning
from benchmarks.attention.tune import regrets
from docs.generator.choice import BAR, how_good_the_choice_is, later_runs


def test_later_runs_are_not_those_of_the_table() -> None:
    for path in tuning.FOLDER.glob("*.json"):
        table = tuning.read(path)
        assert table is not None and table.runs
        later = later_runs(table)
        assert later and not {run[0]["run_id"] for run in later} & set(table.runs)


def test_cases_are_counted() -> None:
    page = how_good_the_choice_is()
    for path in tuning.FOLDER.glob("*.json"):
        table = tuning.read(path)
        assert table is not None
        found = [regret for run in later_runs(table) for regret in regrets(table, run)]
        section = page.split(f"## {table.card}\n")[1]
        rows = re.findall(r"^\| (?:sizes in the table|other sizes) \| (\d+) \| (\d*) ", section, re.MULTILINE)
        assert sum(int(cases) for cases, _ in rows) == len(found)
        assert sum(int(near or 0) for _, near in rows) == sum(regret.share <= BAR for regret in found)
        listed = re.findall(r"^\| .* \| (?:yes|no) \| ([\d.]+%) \|$", section, re.MULTILINE)
        assert listed == sorted((f"{each.share:.1%}" for each in found if each.share > BAR), key=_number, reverse=True)


def _number(percent: str) -> float:
    return float(percent.rstrip("%"))
