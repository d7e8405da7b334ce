"""The page on SDPA and the flash kernels says what its records say, and links each number to its row."""

from __future__ import annotations

import re

import pytest

from benchmarks.attention.cases import COMPARED
from benchmarks.attention.report import median
from benchmarks.bars import digits
from docs.generator.comparison import Comparison
from docs.generator.records import by_card, compared_by_card, fastest
from docs.generator.sdpa_and_flash import MEMORY, RECIPES, SITUATIONS, WHICH_TO_CALL, sdpa_and_flash
from docs.generator.words import AS_CALLED, AS_GRAPH, PASSES
from tests.docs.tables import table_below

CARD = "NVIDIA H200"
COLUMNS = {
    ("forward", AS_CALLED): "forward, as called",
    ("forward", AS_GRAPH): "forward, device time",
    ("forward_backward", AS_CALLED): "forward and backward, as called",
    ("forward_backward", AS_GRAPH): "forward and backward, device time",
}
COMPARISONS = [Comparison(CARD, one) for one in compared_by_card()[CARD]]


@pytest.fixture(scope="module")
def page() -> str:
    return sdpa_and_flash()


def test_runs_are_told_apart() -> None:
    assert COMPARISONS
    assert all("--suite compared" in run["command"] for one in COMPARISONS for run in one.measured.runs)
    assert not any("--suite compared" in run["command"] for one in by_card()[CARD] for run in one.runs)


def test_every_link_leads_to_a_table(page: str) -> None:
    links, headings = (
        re.findall(pattern, page) for pattern in (r"\]\(#([^)]+)\)", r"\{ #(\S+) data-search-exclude \}")
    )
    assert len(headings) == len(set(headings))
    assert set(links) <= set(headings) and len(links) > 20
    assert {one.anchor for one in COMPARISONS} == set(headings)


def test_cards_have_anchors_of_their_own() -> None:
    assert Comparison("Another GPU", COMPARISONS[0].measured).anchor != COMPARISONS[0].anchor


def test_every_situation_has_its_rows_and_says_what_was_not_measured(page: str) -> None:
    rows = table_below(page, WHICH_TO_CALL)
    assert [row["situation"] for row in rows] == sorted(
        (row["situation"] for row in rows), key=[each.name for each in SITUATIONS].index
    )
    for situation in SITUATIONS:
        shapes = [shape for shape in COMPARED if situation.includes(shape)]
        wanted = {(recipe, shape) for recipe in situation.recipes for shape in shapes}
        there = [one for one in COMPARISONS if (one.recipe, one.shape) in wanted]
        mine = [row["sizes"] for row in rows if row["situation"] == situation.name]
        assert wanted, situation.name
        assert sorted(size for size in mine if size.startswith("[")) == sorted(one.link for one in there)
        missing = len(wanted) - len(there)
        said = [size for size in mine if "not measured yet" in size]
        assert said == (
            [] if not missing else [f"{missing} of {len(wanted)} not measured yet" if there else "not measured yet"]
        )


def test_each_cell_is_of_its_row(page: str) -> None:
    by_link = {one.link: one for one in COMPARISONS}
    rows = [row for row in table_below(page, WHICH_TO_CALL) if row["sizes"] in by_link]
    assert rows
    for row in rows:
        one = by_link[row["sizes"]]
        for (what, times), column in COLUMNS.items():
            if found := fastest(one.measured, what, times):
                assert row[column].startswith(f"`{found[0]['backend']}`")
                assert row[column].endswith(f" {digits(median(found[0][times]))} ms")
            else:
                assert row[column] == ""
        timed = [times for what in PASSES if "sdpa_default" in (times := one.times(what, AS_GRAPH))]
        ratios = " and ".join(f"{each['sdpa_default'] / min(each.values()):.2f}" for each in timed)
        said = f"`{one.own_kernel()}`, device time {ratios} times that of the fastest"
        assert row["PyTorch's own choice"] == said


def test_tables_of_memory(page: str) -> None:
    for one in COMPARISONS:
        section = page.split(f"{{ #{one.anchor} ")[1]
        rows = table_below(section, MEMORY)
        (row,) = (row for row in rows if row["tokens"] == one.tokens)
        for way, record in one.rows("forward_backward").items():
            if record["status"] == "ok":
                assert row[way] == f"{record['peak_bytes'] / 2**20:,.0f}"
            elif record["status"] == "oom":
                assert row[way] == "does not fit"


def test_what_has_no_time_has_a_reason(page: str) -> None:
    for one in COMPARISONS:
        section = page.split(f"{{ #{one.anchor} ")[1].split("\n#### ")[0]
        for what in ("forward", "forward_backward"):
            for way, record in one.rows(what).items():
                if record["status"] != "ok":
                    assert f"{way}, {record['status']}: {record['message']}" in section


def test_what_is_missing_is_counted(page: str) -> None:
    total = len(RECIPES) * len(COMPARED)
    missing = total - len(COMPARISONS)
    assert (f"Not measured yet: {missing} of {total} sizes" in page) == (missing > 0)
