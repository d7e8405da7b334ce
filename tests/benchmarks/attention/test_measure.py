"""A group has a record for every way and pass, whatever goes wrong with one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import pytest
import torch

from benchmarks import record
from benchmarks.attention import gate, measure
from benchmarks.attention.cases import PASSES, Group, Shape
from benchmarks.attention.measure import Limits, ceiling, expected_rows, rows_of, whole_groups
from benchmarks.attention.ways import WAYS, Way
from tests.benchmarks.attention.small import (
    SMALL,
    Changed,
    NotFinite,
    OffByALittle,
    OutOfMemory,
    Raises,
    Slow,
    WrongGradients,
)

SHORT = Limits(seconds=0.0, most=3, way_seconds=60.0)
CHEAP = ("sdpa_math", "eager")


def measured(ways: dict[str, Way], monkeypatch: pytest.MonkeyPatch, limits: Limits = SHORT) -> list[dict[str, Any]]:
    for name, way in ways.items():
        monkeypatch.setitem(WAYS, name, way)
        way.name = name
    rows = [row | {"run_id": "a"} for row in rows_of(SMALL, [*ways, "eager"], "cpu", limits)]
    for row in rows:
        record.validate(row)
    assert {(row["backend"], row["what"]) for row in rows} == expected_rows([*ways, "eager"])
    assert len(rows) == len(ways) * 3 + 3
    assert all(row["status"] == "ok" for row in rows if row["backend"] == "eager")
    return rows


def statuses(rows: list[dict[str, Any]], way: str) -> dict[str, str]:
    return {row["what"]: row["status"] for row in rows if row["backend"] == way}


def test_right_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured({"mine": Changed()}, monkeypatch)
    assert all(row["status"] == "ok" for row in rows)
    for row in rows:
        assert [len(taken) for taken in row["rounds_ms"]] == [2, 2, 2]
        assert row["pairs_kept"] == SMALL.pairs_kept()
        assert "mode" not in row and "block_mask_ms" not in row
        assert row["gate"]["length"] == 64


@pytest.mark.parametrize(
    ("way", "forward", "training", "message"),
    [
        (OffByALittle(), "wrong", "wrong", "output: relative error"),
        (NotFinite(), "wrong", "wrong", "output: relative error inf"),
        (WrongGradients(), "ok", "wrong", "gradients: relative error 5.0e-01"),
        (Raises(), "failed", "failed", "RuntimeError: no such kernel"),
        (OutOfMemory(), "oom", "oom", "CUDA out of memory. Tried to allocate 9 GiB."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Way) else str(value)[:8],
)
def test_wrong_ways(way: Way, forward: str, training: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured({"broken": way}, monkeypatch)
    assert statuses(rows, "broken") == dict(zip(PASSES, (forward, training, training), strict=True))
    for row in rows:
        if row["status"] != "ok":
            assert row["message"].startswith(message) and "\n" not in row["message"]
            assert "rounds_ms" not in row


def test_a_way_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured({"slow": Slow()}, monkeypatch, Limits(0.0, 3, way_seconds=1.0))
    assert set(statuses(rows, "slow").values()) == {"timeout"}
    assert rows[0]["message"] == "not compiled and checked within 1 s"


def test_a_way_that_fails_when_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsLater(Changed):
        calls = 0

        def change(self, out: Any) -> Any:
            self.calls += 1
            if self.calls > 5:
                raise RuntimeError("worn out")
            return out

    rows = measured({"worn": FailsLater()}, monkeypatch)
    assert "failed" in statuses(rows, "worn").values()
    assert all(row["message"] == "RuntimeError: worn out" for row in rows if row["status"] == "failed")


def test_what_a_way_needs_holds_whenever_it_is_called_and_never_else(monkeypatch: pytest.MonkeyPatch) -> None:
    holds: list[bool] = []

    class Within(Changed):
        @contextmanager
        def within(self) -> Iterator[None]:
            assert not holds
            holds.append(True)
            yield
            holds.clear()

        def change(self, out: Any) -> Any:
            assert holds
            return out

    class Without(Changed):
        def change(self, out: Any) -> Any:
            assert not holds
            return out

    monkeypatch.setitem(gate.LONGEST, "cpu", 32)
    rows = measured({"within": Within(), "without": Without()}, monkeypatch)
    assert {row["status"] for row in rows} == {"ok"}


def test_what_no_way_can_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured({"sdpa_cudnn": WAYS["sdpa_cudnn"]}, monkeypatch)
    assert {(row["status"], row["message"]) for row in rows if row["backend"] == "sdpa_cudnn"} == {
        ("unsupported", "this kernel does not run on cpu")
    }


def test_a_truth_that_found_no_memory_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, truth = [], measure.Gate

    def lacks_memory_once(group: Group, device: str, gradients: bool) -> measure.Gate:
        made.append(group)
        if len(made) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return truth(group, device, gradients)

    monkeypatch.setattr(measure, "Gate", lacks_memory_once)
    rows = list(rows_of(SMALL, CHEAP, "cpu", SHORT))
    assert {row["status"] for row in rows} == {"ok"}
    assert len(made) == 2


def test_parameters_that_do_not_fit_are_records_too() -> None:
    group = Group("block_diffusion", "bench", Shape(1, 2, 2, 9, 9, 8, "float32"))
    rows = [row | {"run_id": "a"} for row in rows_of(group, CHEAP, "cpu", SHORT)]
    assert {(row["backend"], row["what"]) for row in rows} == expected_rows(CHEAP)
    for row in rows:
        record.validate(row)
        assert row["status"] == "failed" and "block_diffusion" in row["message"]


def test_a_shorter_check_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gate.LONGEST, "cpu", 32)
    rows = measured({"mine": Changed(), "off": OffByALittle()}, monkeypatch)
    assert {row["gate"]["length"] for row in rows} == {32}
    assert set(statuses(rows, "off").values()) == {"wrong"}


def test_whole_groups() -> None:
    rows = [row | {"run_id": "a"} for row in rows_of(SMALL, CHEAP, "cpu", SHORT)]
    (key,) = whole_groups(rows, CHEAP)
    assert key == measure.key_of(SMALL.described())
    assert not whole_groups(rows[1:], CHEAP)
    assert not whole_groups(rows, (*CHEAP, "flex"))
    half = len(rows) // 2
    assert not whole_groups(rows[:half] + [row | {"run_id": "b"} for row in rows[half:]], CHEAP)


def test_a_clock_that_fails_is_no_ways_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "in_turns", no_room)
    rows = [row | {"run_id": "a"} for row in rows_of(SMALL, CHEAP, "cpu", SHORT)]
    assert {(row["backend"], row["what"]) for row in rows} == expected_rows(CHEAP)
    for row in rows:
        record.validate(row)
        assert row["status"] == "failed" and row["message"] == "what takes the times failed: CUDA out of memory"
    assert not whole_groups(rows, CHEAP)


@pytest.mark.parametrize("passes", [("forward",), ("backward",), ("forward", "forward_backward")], ids=str)
def test_some_passes_alone(passes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    gates: list[measure.Gate] = []
    truth = measure.Gate
    monkeypatch.setattr(
        measure, "Gate", lambda *arguments, **known: gates.append(truth(*arguments, **known)) or gates[-1]
    )
    rows = [row | {"run_id": "a"} for row in rows_of(SMALL, CHEAP, "cpu", SHORT, passes=passes)]
    assert {(row["backend"], row["what"]) for row in rows} == expected_rows(CHEAP, passes)
    assert len(rows) == len(CHEAP) * len(passes)
    assert {row["status"] for row in rows} == {"ok"}
    assert ("q" in gates[0]._expected) == (passes != ("forward",))
    assert whole_groups(rows, CHEAP, passes) and not whole_groups(rows, CHEAP)


def test_ceiling() -> None:
    row = ceiling("cpu", "float32", 0.0) | {"run_id": "a"}
    record.validate(row)
    assert row["size"] == 1024


@pytest.mark.parametrize(
    "change",
    [
        {"status": "wrong", "message": "w"},
        {"rounds_ms": [[1.0]]},
        {"rounds_ms": [[1.0], [0.0]]},
        {"gate": {"length": 3}},
        {"extra": 1},
        {"message": "no time"},
        {"what": "sideways"},
    ],
    ids=str,
)
def test_records_that_are_refused(change: dict[str, Any]) -> None:
    row = next(iter(rows_of(SMALL, ("eager",), "cpu", SHORT))) | {"run_id": "a"}
    record.validate(row)
    with pytest.raises(jsonschema.ValidationError):
        record.validate(row | change)
