"""Measure groups: every way is refused, gated, compiled, or found wrong by itself; what is right is timed in turns.

Each record is given as soon as it is known. A group is whole when it has a record for every way and pass; one that was
cut is measured again from its start, so that its ratios are of one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config as inductor_config

from benchmarks.attention.cases import PASSES, Group
from benchmarks.attention.clock import RunFailed, Samples, Timed, in_turns
from benchmarks.attention.gate import Gate, Verdict
from benchmarks.attention.turns import Turns
from benchmarks.attention.ways import WAYS, Attend, Task, Way, forget_compiled
from benchmarks.device_build import first_line
from benchmarks.device_clock import peak_bytes, timed
from benchmarks.gate import give_memory_back
from benchmarks.time_limit import within

Row = dict[str, Any]
MASK_BUILDS = 5
PROCESS_ENDED, CLOCK_FAILED = "its process ended with code", "what takes the times failed"
"""How the message of a failure begins that says nothing of a way: it may have come from outside."""

ALONE_HERE = Turns()
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True)
class Limits:
    """How long things may take.

    Attributes:
        seconds: Samples of one way in one round are taken for about this long.
        most: No more samples of one way in one round.
        way_seconds: A way that is not compiled and checked by then is given up.
    """

    seconds: float = 0.03
    most: int = 30
    way_seconds: float = 240.0


@dataclass
class _Contender:
    """One way in one pass that is right, ready to be timed."""

    timed: Timed
    row: Row


def expected_rows(ways: Iterable[str], passes: Sequence[str] = PASSES) -> set[tuple[str, str]]:
    """Way and pass of every record of a whole group."""
    return set(itertools.product(ways, passes))


def key_of(row: Row) -> tuple[object, ...]:
    """What tells groups apart in a file of records."""
    return row["recipe"], row["case"], *sorted(row["shape"].items())


def whole_groups(rows: Iterable[Row], ways: Sequence[str], passes: Sequence[str] = PASSES) -> set[tuple[object, ...]]:
    """The keys of groups of which one run has every record, and did not end while it measured them."""
    found: dict[tuple[object, ...], set[tuple[str, str]]] = {}
    for row in rows:
        if row["record"] == "attention" and not _is_from_outside(row):
            found.setdefault((row["run_id"], *key_of(row)), set()).add((row["backend"], row["what"]))
    wanted = expected_rows(ways, passes)
    return {key[1:] for key, there in found.items() if wanted <= there}


def _is_from_outside(row: Row) -> bool:
    message: str = row.get("message", "")
    return message.startswith((PROCESS_ENDED, CLOCK_FAILED))


def rows_of(
    group: Group,
    ways: Sequence[str],
    device: str,
    limits: Limits,
    turns: Turns = ALONE_HERE,
    passes: Sequence[str] = PASSES,
) -> Iterator[Row]:
    """The records of a group, for all these ways and passes."""
    try:
        race = _race(group, device, limits, turns, passes)
    except Exception as error:  # whatever goes wrong with one group, the others are measured
        for name, what in itertools.product(ways, passes):
            yield _row(group.described(), WAYS[name], what, device) | _failure(error)
        return
    contenders: dict[str, dict[str, _Contender]] = {what: {} for what in passes}
    with turns.beside_others():
        outcomes = race.outcomes(ways)
        with suppress(RuntimeError):
            give_memory_back()
    with turns.alone():
        for (name, training), outcome in race.with_all_memory(outcomes).items():
            for what in (what for what in passes if _trains(what) == training):
                row = _row(race.described, WAYS[name], what, device)
                if isinstance(outcome, dict):
                    yield row | outcome
                else:
                    contenders[what][name] = _Contender(outcome.timed[what], row | outcome.known)
        for racing in contenders.values():
            yield from _timed(racing, device, limits)
    forget_compiled()
    with suppress(RuntimeError):
        give_memory_back()


def _trains(what: str) -> bool:
    """Whether a pass is one of training."""
    return what != PASSES[0]


def _race(group: Group, device: str, limits: Limits, turns: Turns, passes: Sequence[str]) -> _Race:
    """The race of a group; where others hold the memory that its truth needs, when they have given it back."""
    try:
        with turns.beside_others():
            return _Race(group, device, limits, passes)
    except torch.OutOfMemoryError:
        give_memory_back()
    with turns.alone():
        return _Race(group, device, limits, passes)


def _row(shared: Row, way: Way, what: str, device: str) -> Row:
    mode = way.mode(device)
    return {"record": "attention", **shared, "backend": way.name, "what": what} | ({"mode": mode} if mode else {})


def failed_row(group: Group, way: str, what: str, device: str, message: str) -> Row:
    """The record of what was not come to."""
    return _row(group.described(), WAYS[way], what, device) | {"status": "failed", "message": message}


@dataclass(frozen=True)
class _Ready:
    """What can be timed, by pass, and what is known of it."""

    timed: dict[str, Timed]
    known: Row


class _Race:
    """The ways to compute one group, all of the same recipe: a table of a score may fill much of the card."""

    def __init__(self, group: Group, device: str, limits: Limits, passes: Sequence[str]) -> None:
        self.group, self.device, self.limits = group, device, limits
        self.trainings = sorted({_trains(what) for what in passes})
        self.gate = Gate(group, device, gradients=any(self.trainings))
        self.inputs = group.inputs(device)
        self.recipe = group.recipe(device) if self.gate.is_shortened else self.gate.recipe
        self._verdicts: dict[tuple[str, bool], Verdict | Row | None] = {}
        self.described = group.described() | {"pairs_kept": group.pairs_kept()}
        give_memory_back()

    def outcomes(self, ways: Sequence[str]) -> dict[tuple[str, bool], _Ready | Row]:
        """For each way, without gradients and with them as the passes need, what can be timed, or why it cannot.

        What is checked on a shorter sequence is checked first, and what was compiled for that forgotten at once: else
        sizes would become symbols, and what is compiled for the longer one another kernel.
        """
        found: dict[tuple[str, bool], Verdict | Row | None] = {}
        for key in itertools.product(ways, self.trainings):
            found[key] = self._attempt(self._refused_or_checked, *key)
        if self.gate.is_shortened:
            forget_compiled()
        self._verdicts = found
        return {
            key: verdict if isinstance(verdict, dict) else self._attempt(self._ready, *key, verdict)
            for key, verdict in found.items()
        }

    def with_all_memory(self, outcomes: dict[tuple[str, bool], _Ready | Row]) -> dict[tuple[str, bool], _Ready | Row]:
        """The outcomes, those that lacked memory tried again: others may have held it."""
        lacked = [key for key, outcome in outcomes.items() if isinstance(outcome, dict) and outcome["status"] == "oom"]
        return outcomes | {key: self._attempt(self._checked_and_ready, *key) for key in lacked}

    def _checked_and_ready(self, name: str, training: bool) -> _Ready | Row:
        verdict = self._verdicts[name, training]
        if isinstance(verdict, dict):
            verdict = self._refused_or_checked(name, training)
            forget_compiled()
        return verdict if isinstance(verdict, dict) else self._ready(name, training, verdict)

    def _attempt(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with within(self.limits.way_seconds, "not compiled and checked"):
                return step(*arguments)
        except Exception as error:  # whatever goes wrong with one way, the others are measured
            with suppress(RuntimeError):
                give_memory_back()
            return _failure(error)
        finally:
            with suppress(RuntimeError):
                torch.cuda.empty_cache()  # others on the same card need what was freed

    def _refused_or_checked(self, name: str, training: bool) -> Verdict | Row | None:
        """A verdict on a shorter sequence, None if there is none, or status and message."""
        way = WAYS[name]
        refused = way.refusal(self._task(training))
        if refused is not None:
            return {"status": "unsupported", "message": refused}
        if not self.gate.is_shortened:
            return None
        task = self.gate.task(training)
        with way.within():
            verdict = self.gate.check(way.prepared(task), task)
        return verdict if verdict.wrong is None else _wrong(verdict)

    def _ready(self, name: str, training: bool, verdict: Verdict | None) -> _Ready | Row:
        with WAYS[name].within():
            return self._ready_within(WAYS[name], training, verdict)

    def _ready_within(self, way: Way, training: bool, verdict: Verdict | None) -> _Ready | Row:
        task = self._task(training)
        attend = way.prepared(task)
        passes = _timed_passes(attend, (task.q, task.k, task.v), self.inputs[3], training)
        whole = passes[PASSES[2] if training else PASSES[0]].run
        compiled_ms = first_ms_of_nothing_cached(whole, self.device)
        if verdict is None:
            verdict = self.gate.check(attend, self.gate.task(training))
            if verdict.wrong is not None:
                return _wrong(verdict)
        known = {
            "gate": verdict.described(),
            "first_ms": compiled_ms,
            "peak_bytes": peak_bytes(whole, self.device),
        }
        kernel = way.kernel(task)
        if kernel is not None:
            known["kernel"] = kernel
        if task.recipe.mask is not None and way.name.startswith("flex"):
            known["block_mask_ms"] = _block_mask_ms(task, self.device)
        return _Ready({what: replace(each, within=way.within) for what, each in passes.items()}, known)

    def _task(self, training: bool) -> Task:
        q, k, v = (each.detach().requires_grad_(training) for each in self.inputs[:3])
        return Task(self.recipe, q, k, v, self.group.q_offset(self.recipe))


def _wrong(verdict: Verdict) -> Row:
    return {"status": "wrong", "message": verdict.wrong} | ({"gate": verdict.described()} if verdict.is_finite else {})


def first_ms_of_nothing_cached(run: Callable[[], object], device: str) -> float:
    """Milliseconds of the first call, with nothing that a compiler has left on disk."""
    from torch._inductor.utils import fresh_cache  # imports the whole compiler

    with fresh_cache():
        return timed(run, device)[1]


def _timed_passes(attend: Attend, leaves: Sequence[Tensor], gradient: Tensor, training: bool) -> dict[str, Timed]:
    """What is timed in each pass; a compiled function gives its buffers away, so that backward needs a new forward."""
    q, k, v = leaves

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(q, k, v)

    def forward_backward() -> object:
        return torch.autograd.grad(attend(q, k, v), leaves, gradient)

    computed: list[Tensor] = []

    def backward() -> object:
        return torch.autograd.grad(computed.pop(), leaves, gradient)

    if not training:
        return {"forward": Timed(forward)}
    before = Timed(backward, before=lambda: computed.append(attend(q, k, v)))
    return {"backward": before, "forward_backward": Timed(forward_backward)}


def _block_mask_ms(task: Task, device: str) -> list[float]:
    """Milliseconds of building the BlockMask, which is found in a cache when a call is timed."""
    placed = task.recipe.sized(task.q.shape[0], task.q.shape[1]).place(task.q.shape[2], task.k.shape[2], task.q_offset)
    mask = placed.mask
    assert mask is not None
    lengths = task.q.shape[2], task.k.shape[2]
    return [
        timed(lambda: mask.placed_block_mask(*lengths, device=task.q.device), device)[1] for _ in range(MASK_BUILDS)
    ]


def _timed(racing: dict[str, _Contender], device: str, limits: Limits) -> Iterator[Row]:
    """Time the contenders of one pass in turns; one that fails now is out, and the others begin again."""
    while racing:
        try:
            samples = in_turns({name: each.timed for name, each in racing.items()}, device, limits.seconds, limits.most)
        except RunFailed as failed:
            assert isinstance(failed.__cause__, Exception)
            yield _without_times(racing.pop(failed.name).row) | _failure(failed.__cause__)
            continue
        except Exception as error:  # it may have found no room: no way is to blame
            failure = {"status": "failed", "message": f"{CLOCK_FAILED}: {first_line(error)}"}
            yield from (_without_times(each.row) | failure for each in racing.values())
            return
        for name, contender in racing.items():
            yield contender.row | {"status": "ok"} | _described(samples[name])
        return


def _without_times(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("first_ms", "peak_bytes", "block_mask_ms")}


def _described(samples: Samples) -> Row:
    row: Row = {"rounds_ms": samples.rounds_ms}
    if samples.graph_rounds_ms:
        row["graph_rounds_ms"] = samples.graph_rounds_ms
    if samples.host_ms is not None:
        row["host_ms"] = samples.host_ms
    return row


def _failure(error: Exception) -> Row:
    """Status and message of an error."""
    message = first_line(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in message:
        return {"status": "oom", "message": message.split(" GPU ")[0]}  # whose memory it is comes after that
    if isinstance(error, TimeoutError):
        return {"status": "timeout", "message": message}
    return {"status": "failed", "message": f"{type(error).__name__}: {message}"}


def warm_up(device: str) -> None:
    """Have the compiler loaded, and compile what it needs for all programs: no way's first call pays for that.

    On a card kernels are compiled in threads of this process: torch 2.11 compiles those it has other processes compile
    a second time, one after the other, when it chooses among them.
    """
    if device == "cuda":
        inductor_config.compile_threads = 1
    x = torch.ones(8, device=device)
    torch.compile(_twice)(x)
    forget_compiled()


def _twice(x: Tensor) -> Tensor:
    return x * 2


def ceiling(device: str, dtype: str, seconds: float = 0.5) -> Row:
    """The record of the dense matrix product that times are held against: how much the device does at most."""
    size = MATMUL_SIZE[device]
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    product = torch.empty_like(left)

    def run() -> object:
        return torch.mm(left, right, out=product)

    samples = in_turns({"matmul": Timed(run)}, device, seconds, 50)["matmul"]
    return {"record": "ceiling", "dtype": dtype, "size": size, "rounds_ms": samples.rounds_ms}
