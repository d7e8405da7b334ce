"""Time, memory, launches and compilations of a call on the device it runs on."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._C._autograd import DeviceType
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from benchmarks.clock import peak_memory

NO_KERNELS = ("Memcpy", "Memset")
HOST_CALLS = 100
Result = TypeVar("Result")


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], Result], device: str) -> tuple[Result, float]:
    """What a call returns, and the milliseconds until the device has done it."""
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, (time.perf_counter() - start) * 1000


def host_loop_us() -> float:
    """Microseconds of a fixed loop of Python calls: how fast the host is just now, which it shares with others."""
    start = time.perf_counter()
    total = 0
    for number in range(HOST_CALLS):
        total = _added(total, number)
    return (time.perf_counter() - start) * 1_000_000


def _added(first: int, second: int) -> int:
    return first + second


def sampled(
    make_call: Callable[[], Callable[[], object]], device: str, seconds: float, fewest: int, most: int
) -> list[float]:
    """Milliseconds of calls that are made afresh each time; what making one takes is not counted.

    Args:
        make_call: Returns the call to be timed.
        device: Where it runs.
        seconds: No further sample is taken after this long, making the calls included.
        fewest: Samples that are taken however long they take.
        most: No more samples than this.
    """
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < most and (len(samples) < fewest or time.perf_counter() < end):
        samples.append(timed(make_call(), device)[1])
    return samples


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Bytes that a call needs beyond those allocated before, its result's own included."""
    if device != "cuda":
        return peak_memory(call)
    synchronize(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    synchronize(device)
    del result
    return torch.cuda.max_memory_allocated() - before


def observed(call: Callable[[], object], device: str) -> tuple[int, int | None]:
    """``peak_bytes`` of a call and the kernels it starts, None if they cannot be seen; watched calls are not timed.

    Copies and fills by the copy engine are no kernels.
    """
    if device != "cuda":
        return peak_bytes(call, device), None
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        peak = peak_bytes(call, device)
    kernels = sum(is_kernel(event) for event in profiled.events() or ())
    return peak, kernels or None  # no BlockMask comes from no kernel: none seen is a profiler that sees none


def is_kernel(event: Any) -> bool:
    """Whether the profiler's event is one kernel, not a copy and not a span that someone named."""
    on_device = event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    return on_device and not event.name.startswith(NO_KERNELS)


@dataclass
class Compilations:
    """How many programs Triton and torch.compile made; one found in a cache on disk counts, as it costs time too."""

    count: int = 0


@contextmanager
def compilations() -> Iterator[Compilations | None]:
    """Count what is compiled inside; None where Triton is not installed."""
    try:
        knobs: Any = importlib.import_module("triton.knobs")
    except ImportError:
        yield None
        return
    made = Compilations()
    listener, graphs = knobs.compilation.listener, counters["stats"]["unique_graphs"]

    def count(**event: Any) -> None:
        made.count += 1
        if listener is not None:
            listener(**event)

    knobs.compilation.listener = count
    try:
        yield made
    finally:
        knobs.compilation.listener = listener
        made.count += counters["stats"]["unique_graphs"] - graphs
