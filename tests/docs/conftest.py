"""The generated pages, made once a process."""

from __future__ import annotations

import pytest

from docs import generate


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Path below the gallery's folder to text."""
    return dict(generate.gallery())
