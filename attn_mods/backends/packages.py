"""Whether a kernel package that is no dependency is installed."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def installed(module: str) -> bool:
    """Whether a module is there; it is not imported, since some take seconds and need a card, but what it is in is."""
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # whatever a broken package raises, it cannot be used
        return False
