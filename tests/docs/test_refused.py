"""What the code at hand refuses has no time on any page, whatever the committed runs say, and its row says so."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest

from attn_mods import backends, registry
from attn_mods.backends import Reason
from benchmarks import record
from benchmarks.attention.refusals import refusals
from benchmarks.attention.report import Measured
from benchmarks.attention.ways import WAYS, OfBackend
from docs.generator.equivalents import answers, bench
from docs.generator.measured import measured_speed
from docs.generator.records import by_card, fastest, of_entry
from docs.generator.refused import REFUSED, as_at_hand
from docs.generator.words import AS_CALLED, AS_GRAPH

RECIPES = sorted({str(one.rows[0]["recipe"]) for of_card in by_card().values() for one in of_card})
SHAPE = {"B": 1, "Hq": 2, "Hkv": 2, "q_len": 256, "kv_len": 256, "head_dim": 64, "dtype": "bfloat16"}


def timed(backend: str, what: str = "forward") -> dict[str, Any]:
    row = {"backend": backend, "what": what, "status": "ok", "recipe": "causal", "case": "bench", "shape": SHAPE}
    return row | {AS_CALLED: [[2.0, 2.0]], AS_GRAPH: [[1.0, 1.0]]}


def on_a_card(*rows: dict[str, Any]) -> Measured:
    return Measured(rows, ({"environment": {"card": "Card"}},))


@pytest.mark.parametrize("name", RECIPES)
def test_a_page_has_no_time_of_what_it_says_is_not_computed(name: str) -> None:
    example = bench(registry.info(name))
    computing = {backend: on_card.runs for backend, (on_card, _) in answers(example).items()}
    for of_card in of_entry(name).values():
        for one in of_card:
            for row in one.of("forward"):
                way = WAYS.get(row["backend"])
                if one.rows[0]["shape"]["q_len"] == example.q_len and isinstance(way, OfBackend):
                    assert computing[way.backend] or not (row.get(AS_CALLED) or row.get(AS_GRAPH)), row["backend"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_row_of_what_is_refused_says_so(name: str) -> None:
    page = measured_speed(registry.info(name))
    rows = [row for of_card in of_entry(name).values() for one in of_card for row in one.rows]
    for row in rows:
        if row["status"] == REFUSED:
            assert f"- {row['backend']}, refused: {row['message']}" in page
            assert " ms as called" in row["message"] or " this run has a wrong result (" in row["message"]


def test_a_backend_that_comes_to_refuse_loses_its_times() -> None:
    refusals.cache_clear()
    one = on_a_card(timed("sdpa_cudnn"), timed("flex"), timed("flex_by_hand"), timed("sdpa_cudnn", "forward_backward"))
    before = copy.deepcopy(one)
    assert as_at_hand(one) == before
    (cudnn,) = (each for each in backends.ALL if each.name == "sdpa_cudnn")
    refusals.cache_clear()
    with mock.patch.object(type(cudnn), "limits", lambda self, *asked: Reason(f"{self.name} does not like it")):
        after = as_at_hand(one)
    refusals.cache_clear()
    row, *others = after.rows
    assert row["status"] == REFUSED and AS_CALLED not in row and AS_GRAPH not in row
    assert row["message"].startswith("sdpa_cudnn does not like it.")
    assert "1 ms device time and 2 ms as called" in row["message"].replace(".0", "").replace(".00", "")
    assert [each["status"] for each in others] == ["ok", "ok", REFUSED]
    assert {each["backend"] for each in fastest(after, "forward", AS_GRAPH)} == {"flex", "flex_by_hand"}


def test_what_was_wrong_and_is_refused_by_now_says_both() -> None:
    refusals.cache_clear()
    row = timed("flex_prescaled") | {"status": "wrong", "message": "far off"}
    wrong = {name: value for name, value in row.items() if name not in (AS_CALLED, AS_GRAPH)}
    ((refused,), (still,)) = (as_at_hand(on_a_card(wrong | {"recipe": name})).rows for name in ("alibi", "causal"))
    assert refused["status"] == REFUSED
    assert "PRESCALE_QK" in refused["message"] and refused["message"].endswith("this run has a wrong result (far off)")
    assert still == wrong


def test_what_a_backend_refused_in_a_run_and_takes_by_now_says_so() -> None:
    refusals.cache_clear()
    untimed = {"status": "unsupported", "message": "it was not tried"}
    rows = [timed(each) | untimed for each in ("flex_flash", "nested", "flex_by_hand")]
    by_now, still, by_hand = (row["message"] for row in as_at_hand(on_a_card(*rows)).rows)
    assert by_now == "it was not tried. The code at hand takes it, which this run did not measure"
    assert still == by_hand == "it was not tried"


def test_a_missing_package_is_no_refusal() -> None:
    refusals.cache_clear()
    with mock.patch.object(type(backends.ALL[0]), "supports", lambda *asked: Reason("not here", package="some")):
        assert as_at_hand(on_a_card(timed(backends.ALL[0].name))).rows[0]["status"] == "ok"
    refusals.cache_clear()


def test_records_themselves_stay_as_they_are() -> None:
    statuses = {row.get("status") for path in record.result_files() for row in record.read(path)}
    assert REFUSED not in statuses
