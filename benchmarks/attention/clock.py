"""Times of ways that take turns, so that a busy moment of the machine hits all alike.

On a card a call is timed by events, with the second-level cache flushed before it, once as called and once as a
replayed CUDA graph: the difference is what the host costs. On a CPU it is timed by the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

Run = Callable[[], object]


def nothing() -> None:
    """Nothing."""


@dataclass(frozen=True)
class Timed:
    """What is timed, and what is done before each time, which is not.

    Attributes:
        run: What is timed.
        before: What is done before; what needs something done has no CUDA graph of its own.
    """

    run: Run
    before: Run = nothing


ROUNDS = 3
FEWEST = 2
FLUSHED_BYTES = 256 * 2**20
"""More than the second-level cache of any card."""


class RunFailed(Exception):
    """One of several ways raised; its cause says what.

    Attributes:
        name: Which.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class Samples:
    """Milliseconds of one way.

    Attributes:
        rounds_ms: As called, round by round.
        graph_rounds_ms: As a replayed CUDA graph, likewise; empty where there is none.
        host_ms: How long the host was busy with a call, the card's work not waited for; empty on a CPU.
    """

    rounds_ms: list[list[float]] = field(default_factory=list)
    graph_rounds_ms: list[list[float]] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)


def in_turns(runs: Mapping[str, Timed], device: str, seconds: float, most: int) -> dict[str, Samples]:
    """Sample all ways in several rounds, one after the other in each.

    Args:
        runs: What is timed, by name; each was called before.
        device: "cuda" or "cpu".
        seconds: Samples of one way in one round are taken for about this long, two at least.
        most: No more samples of one way in one round.

    Raises:
        RunFailed: One of them raised.
    """
    clock = _Card() if device == "cuda" else _Wall()
    samples = {name: Samples() for name in runs}
    graphs: dict[str, Run | None] = {}
    for name, each in runs.items():
        with _blamed(name):
            each.before()
            each.run()
            graphs[name] = clock.graph(each.run) if each.before is nothing else None
    for _ in range(ROUNDS):
        for name, each in runs.items():
            with _blamed(name):
                samples[name].rounds_ms.append(_sampled(clock.timed, each, seconds, most, samples[name].host_ms))
                graph = graphs[name]
                if graph is not None:
                    samples[name].graph_rounds_ms.append(_sampled(clock.timed, Timed(graph), seconds, most, []))
    return samples


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RunFailed(name) from error


def _sampled(
    timed: Callable[[Run], tuple[float, float | None]], what: Timed, seconds: float, most: int, host_ms: list[float]
) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < most and (len(taken) < FEWEST or time.perf_counter() < end):
        what.before()
        milliseconds, host = timed(what.run)
        taken.append(milliseconds)
        if host is not None:
            host_ms.append(host)
    return taken


class _Wall:
    """A CPU, which does what it is told before it returns."""

    def graph(self, run: Run) -> Run | None:
        return None

    def timed(self, run: Run) -> tuple[float, float | None]:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1000, None


class _Card:
    """A GPU."""

    def __init__(self) -> None:
        self.flushed = torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")

    def graph(self, run: Run) -> Run | None:
        """The run as a replay; None if it cannot be captured: it reads values, or allocates as it likes."""
        graph = torch.cuda.CUDAGraph()
        try:
            with _on_a_side_stream():
                run()
            with torch.cuda.graph(graph):
                run()
        except Exception:  # whatever a capture does not allow, torch raises in many ways
            torch.cuda.synchronize()
            return None
        return graph.replay

    def timed(self, run: Run) -> tuple[float, float | None]:
        self.flushed.zero_()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        begun = time.perf_counter()
        run()
        host = (time.perf_counter() - begun) * 1000
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end), host


@contextmanager
def _on_a_side_stream() -> Iterator[None]:
    """As a capture wants what runs before it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
