"""Shared by the tests on a card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attn_mods.fused import kernels


@pytest.fixture(autouse=True)
def compiled_before_the_next_test() -> Iterator[None]:
    """Whatever a test has a thread compile is compiled when the test ends.

    Filters of warnings are of the whole process: a compiler in a thread would set those of one test again in the next.
    """
    yield
    kernels.finish()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Compilations do not count towards the limit of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
