"""Ways take turns, and the one that fails is named."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.attention import clock
from benchmarks.attention.clock import FEWEST, ROUNDS, RunFailed, Timed, in_turns, nothing


def test_turns() -> None:
    order: list[str] = []
    samples = in_turns({name: Timed(functools.partial(order.append, name)) for name in "abc"}, "cpu", 0.0, 5)
    assert order == [
        *"aabbcc",
        *(name for round_of in ("abc", "cba", "bca") for name in round_of for _ in range(FEWEST)),
    ]
    assert ROUNDS == 3
    for each in samples.values():
        assert [len(taken) for taken in each.rounds_ms] == [FEWEST] * ROUNDS
        assert all(sample > 0 for taken in each.rounds_ms for sample in taken)
        assert each.graph_rounds_ms == []
        assert each.host_ms is None


def test_no_more_samples_than_allowed() -> None:
    samples = in_turns({"a": Timed(nothing)}, "cpu", 60.0, 7)
    assert [len(taken) for taken in samples["a"].rounds_ms] == [7] * ROUNDS


def test_who_fails_is_named() -> None:
    calls = iter(range(100))

    def fails_later() -> None:
        if next(calls) == 4:
            raise ValueError("no more")

    with pytest.raises(RunFailed, match="b") as failed:
        in_turns({"a": Timed(nothing), "b": Timed(fails_later)}, "cpu", 0.0, 5)
    assert failed.value.name == "b"
    assert isinstance(failed.value.__cause__, ValueError)


def test_what_is_done_before_is_done_each_time_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    now = 0.0

    def takes(seconds: float, name: str) -> None:
        nonlocal now
        now += seconds
        order.append(name)

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now)
    timed = Timed(functools.partial(takes, 2.0, "run"), before=functools.partial(takes, 100.0, "before"))
    samples = in_turns({"a": timed}, "cpu", 0.0, 5)
    assert order == ["before", "run"] * (2 + FEWEST * ROUNDS)
    assert samples["a"].rounds_ms == [[2000.0] * FEWEST] * ROUNDS


def test_what_holds_within_is_entered_for_each_row_of_calls_and_left_before_the_next_way() -> None:
    order: list[str] = []

    @contextmanager
    def within() -> Iterator[None]:
        order.append("enter")
        yield
        order.append("leave")

    runs = {"a": Timed(lambda: order.append("a"), within=within), "b": Timed(lambda: order.append("b"))}
    in_turns(runs, "cpu", 0.0, 5)
    assert order[:6] == ["enter", "a", "a", "leave", "b", "b"]
    a, b = ["enter", *["a"] * FEWEST, "leave"], ["b"] * FEWEST
    assert order[6:] == [*a, *b, *b, *a, *b, *a]
