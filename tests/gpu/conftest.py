"""Shared by the tests on a card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Compilations do not count towards the limit of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
