"""Figures on the pages are those of the records, and what is missing is said."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from attn_mods import registry
from benchmarks import record
from benchmarks.attention.cases import SUITES
from benchmarks.attention.report import median, verdict
from benchmarks.bars import bars, digits
from docs.generator import measured as measured_page
from docs.generator.chart import MARKERS, Dot, chart
from docs.generator.measured import measured_speed
from docs.generator.performance import all_backends, block_masks, which_is_fastest
from docs.generator.records import by_card, case, fastest, length, of_entry
from docs.generator.sdpa_and_flash import sdpa_and_flash
from docs.generator.words import AS_CALLED, HOW, HOW_EXPLAINED, NO_OTHER

CARD = "NVIDIA H200"
MEASURED = sorted({str(each.rows[0]["recipe"]) for each in by_card()[CARD]})


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_names_the_fastest_of_each_length(name: str) -> None:
    page = measured_speed(registry.info(name))
    assert f"### {CARD}" in page and f"python -m benchmarks run {name}" in page
    for each in of_entry(name)[CARD]:
        where = f"{length(each):,} tokens" + (f", case {case(each)}" if case(each) else "")
        (line,) = (line for line in page.splitlines() if line.startswith(f"- {where}, forward: "))
        for times, how in HOW.items():
            timed = [row for row in each.of("forward") if row.get(times)]
            best = min(timed, key=lambda row: median(row[times]))
            assert re.search(rf"`{best['backend']}` {digits(median(best[times]))} ms[^;]* {how}[;.]", line)
        assert line.index("device time") < line.index("as called")
        assert each.runs and all(run["run_id"] in page for run in each.runs)
        for row in each.rows:
            if row["status"] != "ok":
                assert row["message"] in page


def test_what_cannot_be_told_apart_is_named_together() -> None:
    for each in by_card()[CARD]:
        rows = fastest(each, "forward", AS_CALLED)
        words = {verdict(row, [r for r in each.of("forward") if r.get(AS_CALLED)]) for row in rows}
        assert words == ({"fastest"} if len(rows) == 1 else {"among the fastest"})


def test_nothing_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_page, "of_entry", lambda name: {})
    assert measured_speed(registry.info("causal")).startswith("Nothing is measured for this recipe yet.")


@pytest.mark.parametrize("page", [which_is_fastest(), all_backends()], ids=["decisions", "all backends"])
def test_every_recipe_measured_stands_on_both_pages(page: str) -> None:
    for name in MEASURED:
        assert f"[{name}](../gallery/{name}.md)" in page


def test_recipes_without_a_time_are_named() -> None:
    section = which_is_fastest().split(f"## {CARD} {{")[1].split("\n## ")[0]
    said = re.findall(r"Not measured on this card yet, at any length: (.*)\.", section)
    missing = [name for name in registry.names() if name not in MEASURED]
    assert sorted(", ".join(said).split(", ")) == sorted(missing) if missing else not said


def test_each_row_has_a_fastest() -> None:
    rows = re.findall(r"^\| \[.*$", all_backends(), re.MULTILINE)
    assert len(rows) > 50
    alone = [row for row in rows if "**1.00**" not in row]
    assert {len(re.findall(r" (?:1\.00) ", row)) for row in alone} <= {1}
    assert all(len([cell for cell in row.split("|")[3:] if cell.strip()]) == 1 for row in alone)


def test_what_no_other_has_a_time_beside_is_not_called_the_fastest() -> None:
    (one,) = (each for each in of_entry("pair_bias")[CARD] if length(each) == 16_384)
    timed = [row["backend"] for row in one.of("forward") if row.get(AS_CALLED)]
    assert timed == ["flex"]
    assert f"ms ({NO_OTHER}) as called" in measured_speed(registry.info("pair_bias"))
    lines = [line for line in which_is_fastest().splitlines() if line.startswith("| [pair_bias]")]
    assert sum(line.count(f"({NO_OTHER})") for line in lines) == 4


def test_the_tables_have_the_ratios_of_a_run() -> None:
    each = next(each for each in by_card()[CARD] if each.rows[0]["recipe"] == "causal" and length(each) == 16_384)
    times = {row["backend"]: median(row["rounds_ms"]) for row in each.of("forward") if row["status"] == "ok"}
    section = all_backends().split(f"## {CARD}, 16,384 tokens")[1].split("Forward, as called:")[1]
    header, line = (
        next(text for text in section.splitlines() if text.startswith(start)) for start in ("| recipe", "| [causal]")
    )
    cells = dict(zip(header.split(" | ")[2:], line.split(" | ")[2:], strict=True))
    ratio = times["flex"] / min(times.values())
    assert cells["flex"].rstrip(" |") == f"{ratio:.2f}"


@pytest.mark.parametrize("write", [which_is_fastest, all_backends, sdpa_and_flash])
def test_device_time_comes_first_and_both_are_explained(write: Callable[[], str]) -> None:
    page = write()
    assert HOW_EXPLAINED in page
    tables = page.partition(HOW_EXPLAINED)[2].lower()
    assert 0 < tables.index("forward, device time") < tables.index("forward, as called")


def test_block_masks_are_those_of_cards() -> None:
    page = block_masks()
    assert f"## {CARD}" in page and "What it is held to:" in page and "no card" not in page


def test_bars_of_which_nothing_was_measured_are_named_below_the_table() -> None:
    runs = {rows[0]["run_id"]: rows for path in record.result_files() if (rows := list(record.read(path)))}
    sections = [section for section in block_masks().split("\n### ") if "What it is held to:" in section]
    assert len(sections) > 1
    for section in sections:
        (run,) = re.findall(r"; run ([0-9a-f]{12}): ", section)
        told = section.split("What it is held to:")[1].split("Without a time:")[0]
        table, _, below = told.partition("Not measured in this run: ")
        held_to = bars(runs[run])
        left_out = [bar for bar in held_to if {bar.verdict(bar.entry), bar.verdict(bar.closure)} == {"not measured"}]
        for bar in held_to:
            place, _, quantity = bar.subject.rpartition(": ")
            assert (f"| {bar.subject} | " in table) == (bar not in left_out), bar.subject
            assert bar not in left_out or (place in below and f"*{quantity}*" in below), bar.subject
        assert bool(below) == bool(left_out)


def test_a_chart_has_a_dot_for_each_length() -> None:
    dots = {"flex": {1024: Dot(1.0, 0.9, 1.2), 4096: Dot(10.0, 9.0, 11.0)}, "eager": {1024: Dot(5.0, 4.0, 6.0)}}
    drawn = chart(dots, "times")
    assert drawn.count("<title>") == 3
    assert "flex, 4,096 tokens: 10.0 ms" in drawn or "flex, 4,096 tokens: 10 ms" in drawn
    positions = [float(x) for x in re.findall(r'class="am-chart-dot" transform="translate\(([\d.]+) .*?<title>', drawn)]
    assert len(positions) == 3 and positions == sorted(positions[:2]) + positions[2:]
    assert drawn.index(">flex<") < drawn.index(">eager<")


def test_lengths_are_told_apart_by_shape_and_the_legend_says_how() -> None:
    lengths = [1024 * 2**power for power in range(len(MARKERS))]
    drawn = chart({"flex": {length: Dot(length, length, length) for length in lengths}}, "times")
    legend = re.findall(r'd="([^"]+)"/><text class="am-chart-axis" x="\d+" y="13">([\d,]+)<', drawn)
    dots = re.findall(r'd="([^"]+)"><title>flex, ([\d,]+) tokens: ', drawn)
    assert legend == dots and len({outline for outline, _ in legend}) == len(lengths)
    described = [f"{marker.name}: {length:,} tokens" for marker, length in zip(MARKERS, lengths, strict=True)]
    assert f"<desc>{'; '.join(described)}</desc>" in drawn
    of_suites = {length for suites in SUITES.values() for suite in suites.values() for length in suite.lengths}
    assert len(of_suites) <= len(MARKERS)
    with pytest.raises(ValueError, match="add a marker"):
        chart({"flex": {length: Dot(1, 1, 1) for length in [*lengths, 9]}}, "times")
