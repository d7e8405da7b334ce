"""One process a group, several at a time: most of a run is compiling, which need not wait for its turn on the card.

A group that takes its process with it, as a failed kernel may, leaves the others as they are, and records that say so.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks.attention import measure
from benchmarks.attention.cases import PASSES, Group
from benchmarks.attention.measure import Limits
from benchmarks.attention.turns import Turns, choose_kernels_in_turn
from benchmarks.attention.ways import WAYS

Row = dict[str, Any]
WAIT_SECONDS = 0.5


@dataclass
class Workers:
    """The processes of one run.

    Attributes:
        ways: What is measured of each group.
        device: "cuda" or "cpu".
        limits: How long things may take.
        jobs: Processes at a time.
        bytes_free: A group is begun beside others only while they all need no more memory than this.
        passes: Which of the passes are measured.
    """

    ways: Sequence[str]
    device: str
    limits: Limits
    jobs: int
    bytes_free: float = math.inf
    passes: Sequence[str] = PASSES
    _context: SpawnContext = field(default_factory=lambda: multiprocessing.get_context("spawn"))

    def rows(self, groups: Sequence[Group], end: float) -> Iterator[tuple[Group, Row | None]]:
        """Each record when it is known, and None for a group that is done.

        After ``end`` no group is begun, and one that is not compiled and checked is given up without a record.

        Args:
            groups: What is measured, in this order.
            end: On the clock of ``time.perf_counter``.
        """
        with tempfile.TemporaryDirectory() as folder:
            yield from self._rows(list(groups), end, Turns(Path(folder)))

    def _rows(self, left: list[Group], end: float, turns: Turns) -> Iterator[tuple[Group, Row | None]]:
        told: Any = self._context.Queue()
        running: dict[int, tuple[Group, SpawnProcess]] = {}
        known: dict[int, list[Row]] = {}
        number = 0
        while running or (left and time.perf_counter() < end):
            while left and self._has_room(left[0], running) and time.perf_counter() < end:
                group = left.pop(0)
                asked = group, tuple(self.ways), self.device, self.limits, turns, tuple(self.passes)
                process = self._context.Process(target=_work, args=(number, told, *asked), daemon=True)
                process.start()
                running[number], known[number] = (group, process), []
                number += 1
            if time.perf_counter() >= end:
                running = {each: one for each, one in running.items() if not turns.end_unless_ready(one[1])}
            ended = [each for each, (_, process) in running.items() if not process.is_alive()]
            for each, row in _told(told):  # after asking who has ended: what they told is in the queue by now
                known[each].append(row)
                yield running[each][0], row
            for each in ended:
                group, process = running.pop(each)
                for row in self._missing(group, known.pop(each), process.exitcode):
                    yield group, row
                yield group, None

    def _has_room(self, group: Group, running: Mapping[int, tuple[Group, SpawnProcess]]) -> bool:
        if not running:
            return True
        needed = sum(self._bytes_needed(each) for each in (group, *(begun for begun, _ in running.values())))
        return len(running) < self.jobs and needed <= self.bytes_free

    def _bytes_needed(self, group: Group) -> int:
        return group.bytes_needed(any(WAYS[name].holds_matrix(group.has_score) for name in self.ways))

    def _missing(self, group: Group, rows: Sequence[Row], code: int | None) -> Iterator[Row]:
        """Records of what a process did not come to."""
        there = {(row["backend"], row["what"]) for row in rows}
        for way, what in sorted(measure.expected_rows(self.ways, self.passes) - there):
            yield measure.failed_row(group, way, what, self.device, f"{measure.PROCESS_ENDED} {code}")


def _end_with_parent() -> None:
    """End this process when the one that began it ends in whatever way: it would disturb the times of others."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _told(told: Any) -> Iterator[tuple[int, Row]]:
    try:
        yield told.get(timeout=WAIT_SECONDS)
        while True:
            yield told.get(timeout=0.05)
    except queue.Empty:
        return


def _work(
    number: int,
    told: Any,
    group: Group,
    ways: Sequence[str],
    device: str,
    limits: Limits,
    turns: Turns,
    passes: Sequence[str],
) -> None:
    """Tell the records of one group, each with its number."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with turns.beside_others():
        measure.warm_up(device)
    if device == "cuda":
        choose_kernels_in_turn(turns)
    for row in measure.rows_of(group, ways, device, limits, turns, passes):
        turns.say_ready()  # for a row of what failed before there was anything to time
        told.put((number, row))
