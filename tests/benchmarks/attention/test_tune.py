"""Tables from records, and how far off they are in another run."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attn_mods import tuning
from benchmarks import record
from benchmarks.__main__ import main
from benchmarks.attention.report import median
from benchmarks.attention.tune import NOT_MEASURED, regrets, table_of

GOLDEN = Path(__file__).with_name("golden.jsonl")


def golden() -> list[dict[str, Any]]:
    return list(record.read(GOLDEN))


def changed(**times: float) -> list[dict[str, Any]]:
    """The golden run again, on a later day, with other times of some backends."""
    rows = [row | {"run_id": "later"} for row in golden()]
    for row in rows:
        if row.get("status") == "ok" and row["backend"] in times:
            row["rounds_ms"] = [[times[row["backend"]]] * 2] * 3
    return rows


def test_records_come_in_any_order() -> None:
    later = [
        row | {"started_at": "2031-01-01T00:00:00+00:00"} if "started_at" in row else row for row in changed(flex=0.5)
    ]
    in_order, reversed_ = table_of([*golden(), *later]), table_of([*later, *golden()])
    assert in_order.runs == reversed_.runs == (golden()[0]["run_id"], "later")
    assert in_order.rows == reversed_.rows and in_order.rows[0].ms["flex"] == 0.5


def test_table() -> None:
    table = table_of(golden())
    assert (table.card, table.torch) == ("Example GPU", "2.13.0")
    assert table.runs == (golden()[0]["run_id"],)
    assert [(row.recipe, row.what, sorted(row.ms)) for row in table.rows] == [
        ("causal", "forward", ["flex", "sdpa_cudnn"]),
        ("causal", "forward_backward", ["flex"]),
    ]
    (forward, _) = table.rows
    assert forward.shapes == tuning.Shapes(1, 16, 16, 16_384, 16_384, 128, 128)
    assert forward.ms["sdpa_cudnn"] == pytest.approx(1.935, abs=0.02)
    rows = {row["backend"]: row for row in golden() if row.get("what") == "forward" and row["recipe"] == "causal"}
    for name in forward.ms:
        assert forward.ms[name] == median(rows[name]["rounds_ms"])
        assert forward.device_ms[name] == median(rows[name]["graph_rounds_ms"])
        assert forward.host_ms[name] == rows[name]["host_ms"]


@pytest.mark.parametrize(("name", "is_refused"), [("causal", False), ("prefix_lm", True)])
def test_what_a_run_did_not_ask_is_chosen_unless_the_code_at_hand_refuses_it(name: str, is_refused: bool) -> None:
    rows = [row | ({"recipe": name} if row.get("recipe") == "causal" else {}) for row in golden()]
    table = table_of(rows)
    faster = replace(table.rows[0], ms=table.rows[0].ms | {"flash3": 0.1})
    first, *_ = regrets(replace(table, rows=(faster,)), rows)
    assert (first.chosen, first.problem) == (("sdpa_cudnn", None) if is_refused else ("flash3", NOT_MEASURED))


def test_no_host_is_busier_than_it_mostly_was_as_far_as_flex_tells() -> None:
    def busy(row: dict[str, Any], times: float, name: str) -> dict[str, Any]:
        return row | {"recipe": name, "host_ms": row["host_ms"] * times} if "host_ms" in row else row

    groups = [("full", 1.0), ("causal", 3.0), ("anti_causal", 2.0)]
    rows = [busy(row, times, name) for name, times in groups for row in golden() if row.get("recipe") == "causal"]
    table = table_of([golden()[0], *rows])
    own = {row["backend"]: row["host_ms"] for row in golden() if row.get("what") == "forward" and "host_ms" in row}
    forward = {row.recipe: row.host_ms for row in table.rows if row.what == "forward"}
    assert forward == {
        name: pytest.approx({each: own[each] * times for each in ("flex", "sdpa_cudnn")})
        for name, times in (("full", 1.0), ("causal", 2.0), ("anti_causal", 2.0))  # 2 is the median
    }


def test_a_host_is_not_busy_for_longer_than_the_call_took() -> None:
    rows = [row | ({"host_ms": 1000.0} if "host_ms" in row else {}) for row in golden()]
    for row in table_of(rows).rows:
        assert row.host_ms == row.ms


@pytest.mark.parametrize("path", sorted(tuning.FOLDER.glob("*.json")), ids=lambda path: str(path.stem))
def test_of_committed_tables_the_choice_is_seldom_slower_than_what_was_measured(path: Path) -> None:
    table = tuning.read(path)
    assert table is not None
    regret = [row.ms[row.fastest_first(row.shapes)[0]] / min(row.ms.values()) - 1 for row in table.rows]
    assert sum(share <= 0.03 for share in regret) >= 0.9 * len(regret)
    assert statistics.mean(regret) <= 0.02
    assert all(row.host_ms.get(name, 0.0) <= row.ms[name] * 1.001 for row in table.rows for name in row.ms)


def test_hosts_stay_as_measured_where_flex_was_not() -> None:
    rows = [row for row in golden() if row.get("backend") != "flex"]
    (forward,) = table_of(rows).rows
    assert forward.host_ms == {"sdpa_cudnn": 0.03}


def test_a_recipe_with_a_score_is_told_apart() -> None:
    of_softcap = [row | ({"recipe": "softcap"} if row.get("recipe") == "causal" else {}) for row in golden()]
    for rows, name, has_score in ((golden(), "causal", False), (of_softcap, "causal with softcap", True)):
        assert [(row.recipe, row.has_score) for row in table_of(rows).rows[:2]] == [(name, has_score)] * 2


def test_the_table_is_of_the_usual_parameters() -> None:
    unusual = [row | ({"case": "tiny"} if "case" in row else {}) for row in changed(flex=0.5)]
    assert table_of([*golden(), *unusual]).rows == table_of(golden()).rows
    assert len(list(regrets(table_of(golden()), unusual))) == 1


def test_the_last_run_counts() -> None:
    (forward, _) = table_of([*golden(), *changed(flex=0.5)]).rows
    assert forward.ms["flex"] == 0.5


def test_regret() -> None:
    table = table_of(golden())
    # With gradients flex alone has a time, which says nothing of a choice.
    assert [(regret.what, regret.share) for regret in regrets(table, golden())] == [("forward", 0.0)]
    (first,) = regrets(table, changed(flex=1.0, sdpa_cudnn=1.25))
    assert (first.chosen, first.fastest, first.is_in_table) == ("sdpa_cudnn", "flex", True)
    assert first.share == pytest.approx(0.25)
    other = [
        row | ({"shape": row["shape"] | {"q_len": 8192, "kv_len": 8192}} if "shape" in row else {}) for row in golden()
    ]
    assert not any(regret.is_in_table for regret in regrets(table, other))


def test_a_choice_without_a_time_is_no_hit() -> None:
    table = table_of(golden())
    failed = [
        row | {"status": "failed", "message": "no"} if row.get("backend") == "sdpa_cudnn" else row for row in golden()
    ]
    left_out = [row for row in golden() if row.get("backend") != "sdpa_cudnn"]
    refused = [row | {"status": "unsupported"} if row.get("backend") == "sdpa_cudnn" else row for row in golden()]
    for rows, problem in ((failed, "failed"), (left_out, "not measured")):
        (first,) = regrets(table, rows)
        assert (first.chosen, first.fastest, first.problem, first.share) == ("sdpa_cudnn", "flex", problem, math.inf)
    assert list(regrets(table, refused)) == [], "flex is chosen, and has a time alone"
    asked_alone = [row for row in golden() if row.get("backend", "flex") == "flex"]
    assert list(regrets(table, asked_alone)) == [], "no other was asked"


def test_a_recipe_that_the_table_lacks_goes_by_the_fixed_order() -> None:
    table = tuning.Table("Example GPU", "2.13.0", ())
    (first,) = regrets(table, changed(flex=1.0, sdpa_cudnn=2.0))
    assert (first.chosen, first.share) == ("sdpa_cudnn", 1.0)


@pytest.mark.parametrize("card", [None, "Another GPU"])
def test_records_of_other_machines_are_refused(card: str | None) -> None:
    rows = golden()
    rows.append(rows[0] | {"run_id": "x", "environment": rows[0]["environment"] | {"card": card}})
    with pytest.raises(ValueError, match=r"the records must be of one card, got .*Example GPU"):
        table_of(rows)


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "card.json"
    result = CliRunner().invoke(main, ["tune", str(GOLDEN), "--out", str(out)], catch_exceptions=False)
    assert result.output == f"2 measurements on Example GPU written to {out}\n"
    table = tuning.read(out)
    assert table is not None and len(table.rows) == 2
    result = CliRunner().invoke(main, ["tune", str(GOLDEN), "--against", str(GOLDEN)], catch_exceptions=False)
    assert result.output.splitlines() == [
        "  0.0% causal bench 16,384 bfloat16, forward: sdpa_cudnn for sdpa_cudnn (in the table)",
    ]
