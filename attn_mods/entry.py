"""Frozen metadata of one catalogue entry: where it is from, how it looks, on which cases it is tested."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["mask", "score", "model"]
"""What an entry is."""


@dataclass(frozen=True)
class Paper:
    """A publication that defines the entry.

    Args:
        title: Title of the paper.
        arxiv: Its arXiv number, for example ``"2310.06825"``; None for what is not on arXiv.
        where: Equation, section, figure or file that holds the definition.
        url: Address of what has no arXiv number (a repository, a model card).
    """

    title: str
    arxiv: str | None = None
    where: str = ""
    url: str | None = None


@dataclass(frozen=True)
class Model:
    """A published model that uses the entry, and the configuration field that holds its parameter."""

    name: str
    field: str = ""


@dataclass(frozen=True)
class Case:
    """One set of parameters on which an entry is tested, drawn and measured.

    Args:
        make: ``make(q_len, kv_len, device)`` returns the mask or score with its parameters on ``device``. The same
            arguments give the same values. With q_len < kv_len the queries may be any part of the sequence: the
            parameters describe ``kv_len`` positions.
        lengths: The (q_len, kv_len) pairs the case is defined for, or None for any.
    """

    make: Callable[[int, int, str], Any]
    lengths: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Entry:
    """One entry of the catalogue.

    Args:
        title: Name for people, for example "Sliding window".
        summary: One plain sentence.
        papers: Where it is from.
        models: Published models that use it.
        tags: Words to filter by.
        picture: Drawn by hand: one line a query, ``x`` for a visible key and ``.`` for a hidden one, of the case
            "tiny" at batch 0 and head 0. The number of lines and of columns are the lengths. Empty for scores.
        cases: Test cases by name; "tiny" and "bench" are required.
        name: Key of the entry; a class fills it in from its own name.
        kind: "mask", "score" or "model"; a class fills it in.
        build: Makes the mask, score or list of recipes from parameters; a class fills itself in.
        traps: How the entry is commonly got wrong, one sentence each.
        scale: What its models multiply q . k by, where that is not 1 / sqrt(D).
    """

    title: str
    summary: str
    cases: Mapping[str, Case]
    papers: tuple[Paper, ...] = ()
    models: tuple[Model, ...] = ()
    tags: frozenset[str] = frozenset()
    picture: str = ""
    name: str = ""
    kind: Kind = "mask"
    build: Callable[..., Any] | None = field(default=None, repr=False)
    traps: tuple[str, ...] = ()
    scale: float | None = None


def entry_name(class_name: str) -> str:
    """The key of a class: ``T5Bucket`` gives ``t5_bucket``, ``LogNScale`` gives ``log_n_scale``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
