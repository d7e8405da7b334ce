"""The table of kernel options gives the records' own times, and what is refused or wrong has none."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mods import registry
from benchmarks.attention.report import median
from docs.generator import flex_options as section
from docs.generator.flex_options import flex_options
from docs.generator.records import runs
from docs.generator.words import AS_GRAPH, passed
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
        "causal": ("0.75", ""),
        "softcap": ("1.00", "refused"),
        "alibi": ("", "refused"),
        "sliding_window": ("failed", ""),
    }
    monkeypatch.setattr(section, "runs", lambda: [[run, *alone]])
    assert flex_options() == ""


def test_the_committed_figures_are_those_of_the_records() -> None:
    ways = ("flex_tma", "flex_prescaled")
    page = table_below(f"\n{flex_options()}", TITLE)
    cells = {(line["recipe"], line["pass"], way): line[way] for line in page for way in ways}
    found = {}
    for run in runs():
        rows = {
            (row["recipe"], passed(row["what"]), row["backend"]): row for row in run if row["record"] == "attention"
        }
        for (recipe, what, way), row in rows.items():
            if way in ways:
                without = median(rows[recipe, what, "flex"][AS_GRAPH])
                share = f"{median(row[AS_GRAPH]) / without:.2f}" if row["status"] == "ok" else row["status"]
                is_refused = way == "flex_prescaled" and registry.info(recipe).kind == "score"
                found[recipe, what, way] = "refused" if is_refused else share
    assert cells == found
