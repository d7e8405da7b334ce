"""Shared by all tests: fixed seeds, and no more threads than cores."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from attn_mods.backends import plan


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
