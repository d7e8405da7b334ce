"""Functions that take the place of torch's: marked, so that none is put in the place of another of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "mended_by_attn_mods"


def once(mend: Callable[[], None]) -> Callable[[], None]:
    """Decorate what mends: it does so in the first call, and while a compiler traces outside of the graph."""
    first = functools.cache(mend)

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch's has no types
    @functools.wraps(mend)
    def mending() -> None:
        first()

    return mending  # type: ignore[no-any-return]  # torch's decorator has no types


def mended(function: Function) -> Function:
    """Mark a function that takes the place of one of torch's."""
    function.__dict__[MARK] = True
    return function


def is_mended(function: Callable[..., Any]) -> bool:
    """Whether a function is marked."""
    return hasattr(function, MARK)


def tell_apart_what_is_kept(tag: str) -> None:
    """Have the compiler not take from disk what it generated before something of it was mended, nor for another."""
    kept: Any = torch.compiler.config
    if tag not in kept.cache_key_tag:
        kept.cache_key_tag = f"{kept.cache_key_tag} {tag}".strip()
