"""What the clock counts: samples, kernels, compilations, bytes."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch._dynamo.utils import counters

from benchmarks import device_clock
from benchmarks.device_clock import compilations, host_loop_us, is_kernel, observed, peak_bytes, sampled, timed


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is read."""
    count: Iterator[int] = itertools.count()
    monkeypatch.setattr(device_clock, "time", types.SimpleNamespace(perf_counter=lambda: float(next(count))))


@pytest.mark.usefixtures("ticks")
def test_a_call_is_timed() -> None:
    assert timed(lambda: "result", "cpu") == ("result", 1000.0)


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize(
    ("seconds", "fewest", "most", "taken"),
    [(0.0, 3, 50, 3), (0.0, 1, 50, 1), (1e6, 3, 50, 50), (10.0, 1, 50, 4)],
    ids=["slow", "very slow", "fast", "until the time is over"],
)
def test_number_of_samples(seconds: float, fewest: int, most: int, taken: int) -> None:
    made: list[int] = []

    def make_call() -> Callable[[], object]:
        made.append(1)
        return lambda: None

    assert sampled(make_call, "cpu", seconds, fewest, most) == [1000.0] * taken
    assert len(made) == taken


def event(name: str, device: DeviceType = DeviceType.CUDA, annotation: bool = False) -> Any:
    return types.SimpleNamespace(name=name, device_type=device, is_user_annotation=annotation)


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (event("void at::native::vectorized_elementwise_kernel"), True),
        (event("states"), True),
        (event("Memcpy DtoH (Device -> Pageable)"), False),
        (event("Memset (Device)"), False),
        (event("cudaLaunchKernel", DeviceType.CPU), False),
        (event("Torch-Compiled Region: 0/0", annotation=True), False),
    ],
    ids=["kernel of torch", "kernel of Triton", "copy", "fill", "launch on the host", "named span"],
)
def test_what_is_a_kernel(seen: Any, counts: bool) -> None:
    assert is_kernel(seen) == counts


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Triton's settings, without Triton."""
    knobs: Any = types.ModuleType("triton.knobs")
    knobs.compilation = types.SimpleNamespace(listener=None)
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    return knobs


def test_compilations_are_counted(triton: Any) -> None:
    heard: list[bool] = []

    def listener(**seen: bool) -> None:
        heard.append(seen["cache_hit"])

    triton.compilation.listener = listener
    with compilations() as made:
        triton.compilation.listener(cache_hit=True)
        triton.compilation.listener(cache_hit=False)
        counters["stats"]["unique_graphs"] += 1
    counters["stats"]["unique_graphs"] -= 1
    assert made is not None and made.count == 3
    assert heard == [True, False]
    assert triton.compilation.listener is listener


def test_nothing_compiled_is_none(triton: Any) -> None:
    with compilations() as made:
        pass
    assert made is not None and made.count == 0


def test_without_triton_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.knobs", None)
    with compilations() as made:
        pass
    assert made is None


def test_memory_of_a_call() -> None:
    mebibytes = 64
    peak = peak_bytes(lambda: torch.ones(mebibytes << 18), "cpu")
    assert (mebibytes - 1) << 20 <= peak < 2 * mebibytes << 20


def test_a_processor_has_no_launches() -> None:
    assert observed(lambda: torch.ones(8), "cpu")[1] is None


def test_the_loop_of_the_host_takes_time() -> None:
    assert 0 < host_loop_us() < 1_000_000
