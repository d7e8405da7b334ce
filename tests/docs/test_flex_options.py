"""The table of kernel options gives the records' own times, and what is refused or wrong has none."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mods import registry
from benchmarks.attention.cases import Shape
from benchmarks.attention.report import median
from docs.generator import flex_options as section
from docs.generator.flex_options import flex_options
from docs.generator.records import runs
from docs.generator.words import AS_CALLED, AS_GRAPH, heads, passed, tokens
from tests.docs.tables import table_below

TITLE = "## Options of the flex kernel"
SHAPE = {"B": 1, "Hq": 2, "Hkv": 2, "q_len": 256, "kv_len": 256, "head_dim": 64, "dtype": "bfloat16"}


def record(backend: str, recipe: str, **values: Any) -> dict[str, Any]:
    row = {"record": "attention", "run_id": "a", "recipe": recipe, "case": "bench", "shape": SHAPE, "what": "forward"}
    return row | {"backend": backend, "status": "ok"} | values


def timed(backend: str, recipe: str, ms: float) -> dict[str, Any]:
    return record(backend, recipe, rounds_ms=[[ms]], graph_rounds_ms=[[ms]])


def test_a_time_as_a_multiple_a_reason_and_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"record": "environment", "run_id": "a", "started_at": "", "command": "", "environment": {"card": "Card"}}
    causal = [timed("flex", "causal", 2.0), timed("flex_tma", "causal", 1.5)]
    softcap = [timed(name, "softcap", 2.0) for name in ("flex", "flex_tma", "flex_prescaled")]
    alibi = [timed("flex", "alibi", 2.0), record("flex_prescaled", "alibi", status="wrong", message="far off")]
    window = [timed("flex", "sliding_window", 2.0), record("flex_prescaled", "sliding_window", rounds_ms=[[1.0]])]
    window.append(record("flex_tma", "sliding_window", status="failed", message="it does not compile"))
    alone = [timed("flex", "full", 2.0), timed("flex_by_hand", "full", 3.0)]
    monkeypatch.setattr(section, "runs", lambda: [[run, *causal, *softcap, *alibi, *window, *alone]])
    rows = {row.pop("recipe"): row for row in table_below(f"\n{flex_options()}", TITLE)}
    assert {name: (row["flex_tma"], row["flex_prescaled"]) for name, row in rows.items()} == {
        "causal": ("0.75 (0.75)", ""),
        "softcap": ("1.00 (1.00)", "refused"),
        "alibi": ("", "refused"),
        "sliding_window": ("failed", ""),
    }
    said = "Forward, `flex_tma` saved more than 3% of the device time in 1 of 2 rows, as called in 1. No option is on"
    assert said in flex_options()
    monkeypatch.setattr(section, "runs", lambda: [[run, *alone]])
    assert flex_options() == ""


def sizes(shape: Shape) -> str:
    return f"{tokens(shape)} {heads(shape)}"


def test_the_committed_figures_are_those_of_the_records() -> None:
    ways = ("flex_tma", "flex_prescaled")
    page = table_below(f"\n{flex_options()}", TITLE)
    cells = [
        (line["recipe"], line["sizes"], line["pass"], way, line[way]) for line in page for way in ways if line[way]
    ]
    latest: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for run in sorted(runs(), key=lambda run: str(run[0]["started_at"])):
        found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        rows = {
            (row["recipe"], sizes(Shape(**row["shape"])), passed(row["what"]), row["backend"]): row
            for row in run
            if row["record"] == "attention"
        }
        for (*case, way), row in rows.items():
            if way in ways:
                without = rows[*case, "flex"]
                if way == "flex_prescaled" and registry.info(case[0]).kind == "score":
                    found.setdefault(tuple(case), []).append((*case, way, "refused"))
                    continue
                device, called = (median(row[times]) / median(without[times]) for times in (AS_GRAPH, AS_CALLED))
                found.setdefault(tuple(case), []).append((*case, way, f"{device:.2f} ({called:.2f})"))
        latest |= {case: told for case, told in found.items() if len(told) >= len(latest.get(case, []))}
    assert sorted(cells) == sorted(cell for told in latest.values() for cell in told)
