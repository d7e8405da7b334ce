"""Times of ways that take turns, so that a busy moment of the machine hits all alike.

On a card calls follow each other as in a training loop: the host queues them all, events around each one take its time,
and the second-level cache is flushed between them. What the host is late with shows in that time; a replayed CUDA graph
is timed beside it, which has no such part. On a CPU each call is timed by the wall.
"""

from __future__ import annotations

import itertools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
        within: What holds while it is called, entered before a row of calls and left after it.
    """

    run: Run
    before: Run = nothing
    within: Callable[[], AbstractContextManager[None]] = nullcontext


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
        host_ms: How long the host was busy with a call, the card's work not waited for, the median of all rounds; None
            on a CPU.
    """

    rounds_ms: list[list[float]] = field(default_factory=list)
    graph_rounds_ms: list[list[float]] = field(default_factory=list)
    host_ms: float | None = None


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
    counts: dict[str, int] = {}
    for name, each in runs.items():
        with _blamed(name), each.within():
            each.before()
            each.run()
            graphs[name] = clock.graph(each.run) if each.before is nothing else None
            call_ms = clock.sampled(each, 1)[0]
            counts[name] = max(FEWEST, min(most, int(seconds * 1000 / max(call_ms, 1e-3))))
    host: dict[str, list[float]] = {name: [] for name in runs}
    for names in _orders(list(runs)):
        for name in names:
            each, graph = runs[name], graphs[name]
            with _blamed(name), each.within():
                samples[name].rounds_ms.append(clock.sampled(each, counts[name]))
                if graph is not None:
                    samples[name].graph_rounds_ms.append(clock.sampled(Timed(graph), counts[name]))
                host[name] += clock.host_samples(each)
    for name, taken in host.items():
        samples[name].host_ms = statistics.median(taken) if taken else None
    return samples


def _orders(names: list[str]) -> Iterator[list[str]]:
    """The order of each round: forth, back, and from the middle on, so that none follows the same other every time.

    A card that has just been busy runs slower, and what follows a heavy kernel would be blamed for it.
    """
    middle = len(names) // 2
    orders = itertools.cycle((names, names[::-1], [*names[middle:], *names[:middle]]))
    return itertools.islice(orders, ROUNDS)


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RunFailed(name) from error


class _Clock(ABC):
    """What takes times."""

    @abstractmethod
    def graph(self, run: Run) -> Run | None:
        """The run as a replay that costs the host next to nothing; None if there is none."""

    @abstractmethod
    def sampled(self, what: Timed, count: int) -> list[float]:
        """Milliseconds of so many calls."""

    @abstractmethod
    def host_samples(self, what: Timed) -> list[float]:
        """How many milliseconds the host is busy with a call, some times; nothing where it does the work itself."""


class _Wall(_Clock):
    """A CPU, which does what it is told before it returns."""

    def graph(self, run: Run) -> Run | None:
        return None

    def sampled(self, what: Timed, count: int) -> list[float]:
        return [self._sample(what) for _ in range(count)]

    def host_samples(self, what: Timed) -> list[float]:
        return []

    def _sample(self, what: Timed) -> float:
        what.before()
        start = time.perf_counter()
        what.run()
        return (time.perf_counter() - start) * 1000


HOST_SAMPLES = 5


class _Card(_Clock):
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

    def sampled(self, what: Timed, count: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        for start, end in events:
            what.before()
            self.flushed.zero_()
            start.record()
            what.run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    def host_samples(self, what: Timed) -> list[float]:
        return [self._host_sample(what) for _ in range(HOST_SAMPLES)]

    def _host_sample(self, what: Timed) -> float:
        what.before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        what.run()
        taken = (time.perf_counter() - start) * 1000
        torch.cuda.synchronize()
        return taken


@contextmanager
def _on_a_side_stream() -> Iterator[None]:
    """As a capture wants what runs before it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's has no types
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
