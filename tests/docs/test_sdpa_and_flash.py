"""The page on SDPA and the flash kernels says what its records say, and links each number to its row."""

from __future__ import annotations

import re

import pytest

from benchmarks.attention.cases import COMPARED, Shape
from benchmarks.attention.report import Measured, median
from benchmarks.bars import digits
from docs.generator import sdpa_and_flash as module
from docs.generator.records import by_card, compared_by_card
from docs.generator.sdpa_and_flash import SITUATIONS, sdpa_and_flash

CARD = "NVIDIA H200"


@pytest.fixture(scope="module")
def page() -> str:
    return sdpa_and_flash()


def compared() -> list[Measured]:
    return list(compared_by_card()[CARD])


def times(one: Measured, what: str) -> dict[str, float]:
    return {row["backend"]: median(row["rounds_ms"]) for row in one.of(what) if row["status"] == "ok"}


def test_runs_are_told_apart() -> None:
    assert all("--suite compared" in one.run["command"] for one in compared() if one.run)
    assert not any("--suite compared" in one.run["command"] for one in by_card()[CARD] if one.run)


def test_every_link_leads_to_a_table(page: str) -> None:
    links, headings = (re.findall(pattern, page) for pattern in (r"\]\(#([^)]+)\)", r"\{ #(\S+) \}"))
    assert len(headings) == len(set(headings))
    assert set(links) <= set(headings) and len(links) > 20


def test_every_situation_has_a_row_or_says_that_it_was_not_measured(page: str) -> None:
    for situation, is_of_it in SITUATIONS.items():
        lines = [line for line in page.splitlines() if line.startswith(f"| {situation} |")]
        there = sum(is_of_it(Shape(**one.rows[0]["shape"])) for one in compared())
        assert len(lines) == max(1, there), situation
        assert ("not measured yet" in lines[0]) == (there == 0)


def test_situations_are_shapes_of_the_suite() -> None:
    for situation, is_of_it in SITUATIONS.items():
        assert any(is_of_it(shape) for shape in COMPARED), situation


@pytest.mark.parametrize("one", compared(), ids=lambda one: one.title)
def test_a_row_names_the_fastest_and_the_choice_of_torch(one: Measured, page: str) -> None:
    rows = [line for line in page.splitlines() if f"[{module._sizes(one)}](#" in line and " ms |" in line]
    for what in ("forward", "forward_backward"):
        called = times(one, what)
        best = min(called, key=called.__getitem__)
        for line in rows:
            assert f"`{best}`" in line and f"{digits(called[best])} ms" in line
            assert f"{called['sdpa_default'] / called[best]:.2f}" in line
    assert len(rows) <= 1


def test_claims_have_the_numbers_of_the_records(page: str) -> None:
    called = [times(one, "forward") for one in compared()]
    packages = [[each[way] for way in ("flash3", "flash4") if way in each] for each in called]
    ratios = [each["sdpa_default"] / min(of_it) for each, of_it in zip(called, packages, strict=True) if of_it]
    faster = next(line for line in page.splitlines() if line.startswith("| FlashAttention is faster"))
    assert f"{max(ratios):.2f}x" in faster
    saved = []
    for one in compared():
        peaks = {row["backend"]: row["peak_bytes"] for row in one.of("forward_backward") if row["status"] == "ok"}
        if {"sdpa_flash", "sdpa_math"} <= peaks.keys():
            saved.append(100 * (1 - peaks["sdpa_flash"] / peaks["sdpa_math"]))
    memory = next(line for line in page.splitlines() if "saves 80 %" in line)
    assert f"it saves {min(saved):.0f} %" in memory and f"{max(saved):.0f} %" in memory


def test_what_is_missing_is_counted(page: str) -> None:
    total = 2 * len(COMPARED)
    assert f"Not measured yet: {total - len(compared())} of {total} sizes" in page
