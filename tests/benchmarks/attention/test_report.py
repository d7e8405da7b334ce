"""Tables from golden records, and the words that go with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import record
from benchmarks.attention.report import measured, median, page, spread, teraflops, verdict
from benchmarks.attention.ways import BASELINE

GOLDEN = Path(__file__).with_name("golden.jsonl")


def row(*rounds: list[float]) -> dict[str, Any]:
    return {"rounds_ms": list(rounds)}


def test_golden_page() -> None:
    assert page(record.read(GOLDEN)) == GOLDEN.with_suffix(".md").read_text(encoding="utf-8")


def test_golden_page_has_every_status() -> None:
    rows = [each for each in record.read(GOLDEN) if each["record"] == "attention"]
    assert {each["status"] for each in rows} == {"ok", "unsupported", "wrong", "oom", "timeout", "failed"}
    assert any("graph_rounds_ms" in each for each in rows)


def test_statistics_are_of_all_samples() -> None:
    rounds = [[1.0, 2.0, 3.0], [4.0, 5.0]]
    assert median(rounds) == 3.0
    assert spread(rounds) == pytest.approx((1.4, 4.6))


@pytest.mark.parametrize(
    ("mine", "word"),
    [
        (row([3.0, 3.1], [3.0, 3.2]), "slower"),
        (row([1.2, 1.2], [1.0, 1.0]), "among the fastest"),
        (row([1.05, 3.0], [1.05, 3.0]), "among the fastest"),
    ],
)
def test_verdict(mine: dict[str, Any], word: str) -> None:
    best = row([1.1, 1.1], [1.1, 1.1])
    assert verdict(mine, [best, mine]) == word
    assert verdict(best, [best, mine]) == ("fastest" if word == "slower" else word)
    assert verdict(best, [best]) == "fastest"


def test_useful_work() -> None:
    shape = {"head_dim": 64}
    forward = {"what": "forward", "pairs_kept": 10**9, "shape": shape, "rounds_ms": [[1.0], [1.0]]}
    assert teraflops(forward) == pytest.approx(4 * 64 * 1e9 / 1e-3 / 1e12)
    assert teraflops(forward | {"what": "backward"}) == pytest.approx(2.5 * teraflops(forward))


def test_nothing() -> None:
    assert page([]) == "No attention was measured.\n"


def test_of_several_runs_one_with_the_baseline_counts_then_that_with_more_times_then_the_last() -> None:
    golden = [each for each in record.read(GOLDEN) if each.get("recipe") != "softcap"]
    first = golden[0]["run_id"]

    def again(run_id: str, started: str, *without: str) -> list[dict[str, Any]]:
        rows = [each | {"run_id": run_id} for each in golden if each.get("backend") not in without]
        return [rows[0] | {"started_at": started}, *rows[1:]]

    later = again("later", "2027-01-01T00:00:00+00:00")
    smaller = again("smaller", "2027-01-02T00:00:00+00:00", "flex")
    without_baseline = again("without", "2027-01-03T00:00:00+00:00", BASELINE)

    more_refused = [
        each | {"backend": "flash4", "status": "unsupported", "message": "no"}
        for each in smaller
        if each.get("backend") == BASELINE
    ]

    def chosen(*runs: list[dict[str, Any]]) -> set[str]:
        return {str(one.rows[0]["run_id"]) for one in measured([row for run in runs for row in run])}

    assert chosen(golden, later) == {"later"}
    assert chosen(golden, smaller) == {first}
    assert chosen(without_baseline, smaller) == {"smaller"}
    assert chosen(golden, [*later[:1], *smaller[1:], *more_refused]) == {first}
