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


def of_a_run(run_id: str, started: str, what: str, **times: float) -> list[dict[str, Any]]:
    """The records of a run in which one pass of one recipe was timed."""
    shape = {"B": 1, "Hq": 1, "Hkv": 1, "q_len": 64, "kv_len": 64, "head_dim": 64, "dtype": "bfloat16"}
    row = {"record": "attention", "run_id": run_id, "recipe": "causal", "case": "bench", "shape": shape, "what": what}
    rows = [row | {"backend": way, "status": "ok", "rounds_ms": [[ms]]} for way, ms in times.items()]
    environment = {"card": "Example GPU", "torch": "2.13.0"}
    run = {"record": "environment", "run_id": run_id, "started_at": started, "environment": environment}
    return [run | {"code": {"git_sha": "0" * 40, "dirty": False}, "command": f"run {run_id}"}, *rows]


def test_of_several_runs_one_with_what_is_fastest_by_any_counts_for_each_pass() -> None:
    rows = [
        *of_a_run("old", "1", "forward", flex=2.0, flex_by_hand=2.2, sdpa_math=9.0),
        *of_a_run("old", "1", "backward", flex=4.0, flex_by_hand=4.4, sdpa_math=9.0),
        *of_a_run("new", "2", "forward", flex=4.0, flex_flash=2.4),
        *of_a_run("new", "2", "backward", flex=8.0, flex_flash=8.8),
        *of_a_run("of others", "3", "forward", sdpa_math=0.1),
    ]
    (one,) = measured(rows)
    assert {row["run_id"] for row in one.of("forward")} == {"new"}
    assert {row["run_id"] for row in one.of("backward")} == {"old"}
    new, old = (
        f"Example GPU, torch 2.13.0, {day}, commit 0000000; run {run}: `run {run}`"
        for day, run in ((2, "new"), (1, "old"))
    )
    assert one.told_sources() == [f"Forward: {new}", f"Backward: {old}"]


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
