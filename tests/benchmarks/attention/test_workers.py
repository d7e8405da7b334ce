"""Groups in processes of their own: every record comes, and a process that dies leaves records that say so."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention import workers
from benchmarks.attention.cases import PASSES, Group, Shape
from benchmarks.attention.measure import Limits, expected_rows
from benchmarks.attention.turns import Turns
from benchmarks.attention.workers import Workers

WAYS = ("sdpa_math", "eager")
GROUPS = [Group("causal", "bench", Shape(1, 2, 2, length, length, 16, "float32")) for length in (32, 48)]


def dies(number: int, told: Any, group: Group, ways: Any, *others: Any) -> None:
    """Tell one record of the first group and leave without a word; do nothing wrong with the other."""
    if group == GROUPS[0]:
        told.put((number, {"backend": "eager", "what": "forward", "status": "ok"}))
        told.close()
        told.join_thread()
        os._exit(3)
    for way, what in expected_rows(ways):
        told.put((number, {"backend": way, "what": what, "status": "ok"}))


def rows_by_group(jobs: int, end: float, passes: tuple[str, ...] = PASSES) -> dict[Group, list[Any]]:
    found: dict[Group, list[Any]] = {}
    for group, row in Workers(WAYS, "cpu", Limits(seconds=0.01, most=3), jobs, passes=passes).rows(GROUPS, end):
        found.setdefault(group, []).append(row)
    return found


def test_every_record_comes_and_then_the_end() -> None:
    wanted = "forward", "forward_backward"
    found = rows_by_group(2, time.perf_counter() + 600, wanted)
    assert set(found) == set(GROUPS)
    for rows in found.values():
        assert rows.count(None) == 1 and rows[-1] is None
        assert sorted((row["backend"], row["what"]) for row in rows[:-1]) == sorted(itertools.product(WAYS, wanted))
        assert {row["status"] for row in rows[:-1]} == {"ok"}


def test_a_process_that_dies_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_work", dies)
    found = rows_by_group(2, time.perf_counter() + 600)
    first, second = (found[group] for group in GROUPS)
    assert {row["status"] for row in second[:-1]} == {"ok"} and len(second) == len(expected_rows(WAYS)) + 1
    assert [row["status"] for row in first[:-1]].count("ok") == 1
    failed = [row for row in first[:-1] if row["status"] == "failed"]
    assert len(failed) == len(expected_rows(WAYS)) - 1
    assert {row["message"] for row in failed} == {"its process ended with code 3"}


BEGINS_ONE = """
import multiprocessing
from tests.benchmarks.attention.test_workers import lingers
process = multiprocessing.get_context("spawn").Process(target=lingers)
process.start()
process.join()
"""


def lingers() -> None:
    """Be a worker that says that it is there, and compiles for ever."""

    def compiles(device: str) -> None:
        print("here", flush=True)
        time.sleep(600)

    workers.measure.warm_up = compiles
    workers._work(0, None, GROUPS[0], WAYS, "cpu", Limits(), Turns(), ("forward",))


def test_a_process_ends_with_the_one_that_began_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", BEGINS_ONE], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert parent.stdout is not None and parent.stdout.readline() == b"here\n"
    parent.kill()
    assert parent.communicate(timeout=60) == (b"", None), "the output is open as long as one of them runs"


def test_what_needs_more_memory_than_is_free_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has told all it has to tell ends before the next begins."""
    begun: list[int] = []
    room = Workers._has_room

    def watched(self: Workers, group: Group, running: Any) -> bool:
        begun.append(len(running))
        return room(self, group, running)

    monkeypatch.setattr(Workers, "_has_room", watched)
    monkeypatch.setattr(workers, "_work", dies)
    needed = GROUPS[1].bytes_needed(holds_matrix=True)
    for free, most in ((2 * needed, 2), (needed, 1)):
        begun.clear()
        several = [GROUPS[1]] * 3
        told = list(Workers(WAYS, "cpu", Limits(), 2, free).rows(several, time.perf_counter() + 600))
        assert len([row for _, row in told if row is None]) == 3
        assert max(begun) == most


def waits_if_first(
    number: int, told: Any, group: Group, ways: Any, device: str, limits: Limits, turns: Turns, passes: Any
) -> None:
    """The first group is never ready; the second has come to its times, and takes some."""
    if group == GROUPS[0]:
        time.sleep(600)
    with turns.alone():
        time.sleep(1)
        for way, what in expected_rows(ways):
            told.put((number, {"backend": way, "what": what, "status": "ok"}))


def test_what_is_not_ready_at_the_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Turns.end_unless_ready

    def ended_when_the_second_is_ready(self: Turns, process: BaseProcess) -> bool:
        assert self.folder is not None
        while not any(self.folder.glob("ready-*")):
            time.sleep(0.05)
        return ended(self, process)

    monkeypatch.setattr(workers, "_work", waits_if_first)
    monkeypatch.setattr(Turns, "end_unless_ready", ended_when_the_second_is_ready)
    found = rows_by_group(2, time.perf_counter() + 1)
    assert set(found) == {GROUPS[1]}
    assert len(found[GROUPS[1]]) == len(expected_rows(WAYS)) + 1


def test_no_group_is_begun_after_the_end() -> None:
    assert rows_by_group(2, time.perf_counter() - 1) == {}
