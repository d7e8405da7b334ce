"""Shared by all tests: fixed seeds, no more threads than cores, and kernels where there is no GPU."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

# Without a GPU, kernels run in Triton's interpreter. Triton asks for it when it and they are imported, so that is done
# here; the package asks at every call, and is told only in the tests of kernels, since the interpreter is slow.
if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("attn_mods.kernels.packed_lists")
    del os.environ["TRITON_INTERPRET"]

# Tracing makes millions of objects that stay, and looking for garbage among them as often as Python does takes long.
gc.set_threshold(100_000, 50, 100)

# Line tables for profilers take a sixth of the time of torch's C++ compiler, and no test reads them.
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")

# torch has one header precompiled for its C++. With all that flex includes in it, a kernel compiles in two thirds of
# the time, and more than a hundred are compiled here.
codecache = importlib.import_module("torch._inductor.codecache")
if hasattr(codecache, "_get_cpp_prefix_header"):
    FLEX_HEADER = Path(__file__).with_name("flex_on_a_cpu.h")
    codecache._get_cpp_prefix_header = lambda device: str(FLEX_HEADER) if device.startswith("cpu") else None

plan = importlib.import_module("attn_mods.backends.plan")


def pytest_configure() -> None:
    """Share the cores between the processes of pytest-xdist; kernels are compiled for this many threads."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.fixture(autouse=True)
def room_for_plans() -> None:
    """One process runs more recipes than any program; forget compiled ones before there are too many."""
    if len(plan._plans) > plan.MOST_PLANS // 2:
        plan._plans.clear()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture
def fresh_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan is compiled yet."""
    monkeypatch.setattr(plan, "_plans", type(plan._plans)())


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch, fresh_plans: None) -> None:
    """Plans are traced and guarded as always, and what was traced runs without code generation."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for tensors of the CPU."""
    if torch.cuda.is_available():
        pytest.skip("where there is a GPU kernels are compiled, and tested in tests/gpu")
    pytest.importorskip("triton", reason="Triton, whose interpreter runs kernels without a GPU, is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tests counted (``record_property``): numbers added up over all tests, texts one a line."""
    totals: dict[str, int] = {}
    lines: list[str] = []
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if isinstance(value, int):
                totals[name] = totals.get(name, 0) + value
            else:
                lines += f"{name}: {value}".splitlines()
    if totals or lines:
        terminalreporter.section("counted")
    for line in (*(f"{name}: {total:,}" for name, total in totals.items()), *sorted(lines)):
        terminalreporter.write_line(line)
