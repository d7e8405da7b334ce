"""Whether a kernel package that is no dependency is installed."""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def installed(module: str) -> bool:
    """Whether a module can be imported, which is not tried here: some take seconds, and need a card."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of a package it would be in
        return False
