"""Functions that take the place of torch's: marked, so that none is put in the place of another of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "mended_by_attn_mods"


def mended(function: Function) -> Function:
    """Mark a function that takes the place of one of torch's."""
    function.__dict__[MARK] = True
    return function


def is_mended(function: Callable[..., Any]) -> bool:
    """Whether a function is marked."""
    return hasattr(function, MARK)
