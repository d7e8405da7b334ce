"""Time and memory of a call on the CPU."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Timing:
    """Every sample, the first call apart, and the memory one call needed above what was there before."""

    first_ms: float
    samples_ms: list[float]
    peak_bytes: int


def measure(make_call: Callable[[], Callable[[], object]], seconds: float, most: int) -> Timing:
    """Time calls that are made afresh each time, so that no cache of values can help.

    Args:
        make_call: Returns the call to be timed; what it does itself is not timed.
        seconds: Samples are taken for about this long.
        most: No more samples than this; at least one is taken.
    """
    first_ms = _timed(make_call())
    peak = peak_memory(make_call())
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < most and (not samples or time.perf_counter() < end):
        samples.append(_timed(make_call()))
    return Timing(first_ms, samples, peak)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes by which the process grew at most during the call (Linux with glibc)."""
    # What earlier calls freed would otherwise be used again without the process growing.
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR_REFS.write_text("5")  # sets the peak back to the present size
    before = _kilobytes("VmRSS")
    call()
    return max(0, _kilobytes("VmHWM") - before) * 1024


def _kilobytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
