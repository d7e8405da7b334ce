"""Building a BlockMask on a card: every way to do it, over fresh parameter values, each gated before it is timed.

All cells run in one process, the ones that matter most first, and each record is written when it is measured: a run
that is cut keeps what it has. What does not fit in memory, takes too long or is wrong is a record as well.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import create_block_mask
from attn_mods.block_mask import list_bytes
from benchmarks.device_clock import compilations, host_loop_us, observed, peak_bytes, sampled, timed
from benchmarks.gate import BLOCK_SIZE, GATE_SEED, Gate, give_memory_back
from benchmarks.measured_masks import MASKS, PRINCIPAL
from benchmarks.methods import METHODS, Call, forget_block_masks, settle
from benchmarks.time_limit import within

LENGTHS = (8_192, 32_768, 131_072, 524_288, 1_048_576)
FIRST_LENGTHS = (32_768, 131_072)
LONGEST_CALL_MS = 20_000.0
ALLOWED = f"{LONGEST_CALL_MS / 1000:g} s are allowed"
FIRST_CALL = "the first call did not end"
MOST_SAMPLES = 50
MOST_WAYS = 4
"""Calls to wait for: the first by the calculus, those that follow by kernels as they are compiled."""

WARM_LENGTHS = (1_024, 32_768)


@dataclass(frozen=True)
class Cell:
    """One cell to measure."""

    mask: str
    length: int
    method: str


def cells(masks: Iterable[str], lengths: Iterable[int], methods: Iterable[str]) -> list[Cell]:
    """The cells asked for: what the bars are about, then the rest, of which what compiles for seconds comes last."""
    chosen = (Cell(*names) for names in itertools.product(masks, lengths, methods))
    return sorted((cell for cell in chosen if METHODS[cell.method].lengths(cell.length)), key=_turn)


def _turn(cell: Cell) -> tuple[bool, bool, bool, int, int]:
    """Where a cell stands; equals keep their order, and with it a cold call comes before the warm ones."""
    mask = list(MASKS).index(cell.mask)
    if cell.mask in PRINCIPAL and cell.length in FIRST_LENGTHS:
        return False, False, False, FIRST_LENGTHS.index(cell.length), mask
    return True, METHODS[cell.method].takes_seconds, cell.mask not in PRINCIPAL, cell.length, mask


def describe(cell: Cell) -> dict[str, Any]:
    """The part of a cell's record that is known before it is measured."""
    mask, length = MASKS[cell.mask], cell.length
    return {
        "record": "cell",
        "what": "block_mask_build",
        "recipe": cell.mask,
        "parameters": mask.described,
        "backend": cell.method,
        "shape": {
            "B": mask.batch,
            "H": 1,
            "q_len": length,
            "kv_len": length,
            "block_size": [BLOCK_SIZE, BLOCK_SIZE],
        },
    }


@dataclass
class Run:
    """One run on one device.

    Attributes:
        device: "cuda" or "cpu".
        seconds: A cell is sampled for about this long.
        budget: After this many seconds what is left is skipped.
        first_seconds: A call that compiles is given up after this long, and so are those that would go on from it.
        gate: The truths.
    """

    device: str
    seconds: float
    budget: float
    first_seconds: float = 120.0
    gate: Gate = field(init=False)
    _call_ms: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    _given_up: dict[Cell, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = Gate(self.device)

    def records(self, todo: Iterable[Cell]) -> Iterator[dict[str, Any]]:
        """The record of each cell, when it is measured."""
        end = time.perf_counter() + self.budget
        warm_up(self.device)
        for cell in todo:
            if time.perf_counter() < end:
                yield describe(cell) | self.outcome(cell)
            else:
                yield describe(cell) | {"status": "skipped", "message": f"the run's {self.budget:g} s were over"}

    def outcome(self, cell: Cell) -> dict[str, Any]:
        """Status, and times or the reason why there are none."""
        method = METHODS[cell.method]
        goes_on_from = None if method.first is None else self._given_up.get(replace(cell, method=method.first))
        reason = method.refuse(cell.mask, self.device) or self._too_slow(cell) or goes_on_from
        if reason is not None:
            return {"status": "skipped", "message": reason}
        row = guarded(partial(self._measured, cell))
        if method.once and row["status"] == "skipped":
            self._given_up[cell] = row["message"]
        return row

    def _too_slow(self, cell: Cell) -> str | None:
        """Why a call would take too long, by what one took at a smaller length: torch's work grows with the square."""
        length, milliseconds = self._call_ms.get((cell.mask, cell.method), (cell.length, 0.0))
        expected = milliseconds * (cell.length / length) ** 2
        if length > cell.length or METHODS[cell.method].once or expected <= LONGEST_CALL_MS:
            return None
        return f"a call at {length:,} tokens took {milliseconds / 1000:.1f} s; {ALLOWED}"

    def _measured(self, cell: Cell) -> dict[str, Any]:
        method = METHODS[cell.method]
        forget_block_masks()
        settle()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        if method.once:
            return self._measured_once(cell)
        taken_ms: list[float] = []
        for _ in range(MOST_WAYS):
            # What was compiled meanwhile is another way to the same lists, and the last one is what is timed.
            with compilations() as made:
                built, call_ms = self._gate_call(cell)
                settle()
            taken_ms.append(call_ms)
            wrong, compared = self.gate.check(cell.mask, built)
            if wrong is not None:
                return {"status": "wrong", "message": wrong}
            if made is None or not made.count or not method.compiles:
                break
        if call_ms > LONGEST_CALL_MS:
            return {"status": "skipped", "message": f"one call took {call_ms / 1000:.1f} s; {ALLOWED}"}
        size = sizes(built)
        del built
        return {"status": "ok", "gate": compared, "first_ms": taken_ms[0]} | size | self._timing(cell, call_ms)

    def _gate_call(self, cell: Cell) -> tuple[BlockMask, float]:
        built, taken = timed(METHODS[cell.method].prepare(cell.mask, cell.length, GATE_SEED, self.device), self.device)
        measured, _ = self._call_ms.get((cell.mask, cell.method), (0, 0.0))
        if cell.length >= measured:  # short calls say nothing of long ones: they take what launches take
            self._call_ms[cell.mask, cell.method] = cell.length, taken
        return built, taken

    def _timing(self, cell: Cell, call_ms: float) -> dict[str, Any]:
        seeds = itertools.count(GATE_SEED + 1)
        host_us: list[float] = []

        def fresh_call() -> Call:
            call = METHODS[cell.method].prepare(cell.mask, cell.length, next(seeds), self.device)
            forget_block_masks()
            settle()
            host_us.append(host_loop_us())
            return call

        peak, launches = observed(fresh_call(), self.device)
        fewest = 3 if call_ms < 1000 * self.seconds else 1
        with compilations() as made:
            samples = sampled(fresh_call, self.device, self.seconds, fewest, MOST_SAMPLES)
            settle()
        row = {"samples_ms": samples, "peak_bytes": peak, "launches": launches, "host_us": statistics.median(host_us)}
        return without_none(row | {"compilations": None if made is None else made.count})

    def _measured_once(self, cell: Cell) -> dict[str, Any]:
        """The first call is the measurement: there is no second one."""
        call = METHODS[cell.method].prepare(cell.mask, cell.length, GATE_SEED, self.device)
        built: list[BlockMask] = []
        milliseconds: list[float] = []

        def first_call() -> None:
            result, taken = timed(call, self.device)
            built.append(result)
            milliseconds.append(taken)

        with within(self.first_seconds, FIRST_CALL):
            peak = peak_bytes(first_call, self.device)
        wrong, compared = self.gate.check(cell.mask, built[0])
        if wrong is not None:
            return {"status": "wrong", "message": wrong}
        timing = {"first_ms": milliseconds[0], "samples_ms": milliseconds, "peak_bytes": peak}
        return {"status": "ok", "gate": compared} | timing | sizes(built[0])


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, or why it was not: nothing that a cell does ends the run."""
    try:
        return measure()
    except TimeoutError as error:
        status, message = "skipped", first_line(error)
    except torch.OutOfMemoryError as error:
        status, message = "out_of_memory", first_line(error).split(" GPU ")[0]  # whose memory it is comes after that
    except Exception as error:
        status, message = "failed", f"{type(error).__name__}: {first_line(error)}"
    with suppress(RuntimeError):  # a card on which a kernel failed gives nothing back
        give_memory_back()
    return {"status": status, "message": message}


def warm_up(device: str) -> None:
    """Have the device and the package's own kernels loaded, by a rule that is none of those measured."""
    for length in WARM_LENGTHS:
        for _ in range(MOST_WAYS):
            create_block_mask(first_key, None, None, length, length, device, BLOCK_SIZE)
            settle()


def first_key(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Every query sees the first key."""
    return kv_idx == 0


def sizes(block_mask: BlockMask) -> dict[str, Any]:
    """Memory of the lists, and whether they are as wide as torch's."""
    indices = block_mask.kv_indices
    return {"lists_bytes": list_bytes(block_mask), "full_width": indices.stride(-2) >= indices.shape[-1]}


def without_none(row: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value: a record has no empty ones."""
    return {name: value for name, value in row.items() if value is not None}


def first_line(error: BaseException) -> str:
    """The first line of a message, or the kind of error if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
