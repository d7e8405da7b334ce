"""The page on which masks are combined: one frame a mask, and what the tile calculus says of every pair of states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attn_mods.entry import Entry
from attn_mods.tiles import EMPTY, FULL, MIXED, States
from attn_mods.tiles.states import UNKNOWN
from docs.generator.constructors import constructor
from docs.generator.examples import make, matrix
from docs.generator.frames import pack_bits
from docs.generator.prose import scripted

LENGTH = 64
BLOCK = 8
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda left, right: left & right,
    "|": lambda left, right: left | right,
    "-": lambda left, right: left & ~right,
}
CASES = ("bench", "tiny")
ABOUT_FRAMES = (
    f"Each mask here is one frame of {LENGTH} x {LENGTH} pairs that its recipe computed; the frames are combined pixel "
    "by pixel."
)
ABOUT_TABLES = (
    "The tables above show, for every operator of your choice, what the states alone can tell and what is true; what "
    "is unknown after one operator goes into the next as unknown."
)


def compose_data(catalogue: Sequence[Entry]) -> dict[str, Any]:
    """Every mask at one length, and the calculus as tables: states of left and right to the state of both."""
    return {
        "length": LENGTH,
        "block": BLOCK,
        "masks": [_mask(entry) for entry in catalogue if entry.kind == "mask"],
        "tables": {sign: _table(combine) for sign, combine in OPERATORS.items()},
    }


def chosen_case(entry: Entry) -> str:
    """The case that is combined: the measured one unless it shows all or nothing at this length.

    Raises:
        LookupError: No case of the entry has this length.
    """
    for case in CASES:
        example = make(entry, case, LENGTH, LENGTH)
        visible = None if example is None else matrix(example)
        if visible is not None and bool((visible != visible[0, 0]).any()):
            return case
    for case in entry.cases:
        if make(entry, case, LENGTH, LENGTH) is not None:
            return case
    raise LookupError(f"{entry.name}: no case can be made for {LENGTH} tokens")


def _mask(entry: Entry) -> dict[str, str]:
    case = chosen_case(entry)
    example = make(entry, case, LENGTH, LENGTH)
    visible = None if example is None else matrix(example)
    if example is None or visible is None:
        raise LookupError(f"{entry.name}: the case {case} has no first head of a first sample")
    text = f'am.info("{entry.name}").cases["{case}"].make({LENGTH}, {LENGTH}, "cpu")'
    if all(not tensor.numel() for tensor in example.part.tensors().values()):
        text = constructor(entry, example.part).expression
    return {"name": entry.name, "title": entry.title, "code": text, "frame": pack_bits(visible)}


def _states(codes: list[int]) -> States:
    return States(torch.tensor(codes, dtype=torch.uint8)[None, None, None])


def _table(combine: Callable[[Any, Any], Any]) -> list[list[int]]:
    every = (EMPTY, FULL, MIXED, UNKNOWN)
    return [[int(combine(_states([left]), _states([right])).codes) for right in every] for left in every]


def compose_page() -> str:
    """The Markdown of the page."""
    return f"""---
title: Compose masks
hide: [toc]
---

# Compose masks

Masks combine with `&` (both), `|` (either), `~` (not) and `-` (the left one without the right one).
{scripted(ABOUT_FRAMES)}

<div class="am-compose" data-frames="../compose.json">
<noscript><p>There is nothing to combine here without JavaScript: with it there are controls, the picture of the
combined mask, and tables of the states of its blocks. In Python a combination is one line, such as
<code>masks.SlidingWindow(window=1024) &amp; masks.Document(cu_seqlens)</code>.</p></noscript>
</div>

## How the BlockMask of a composition is found

The library does not look at pixels. It knows a state of every block of each part, and combines the states: a block
that is empty in one part is empty under `&`. Where that says nothing for certain, such as two mixed blocks under `&`,
the state is unknown, a few positions are sampled, and only what is still unknown is evaluated pair by pair.
{scripted(ABOUT_TABLES)}
The library mostly does better than the states alone: it analyses the joint rule, not the states of its parts.
[Tiles](../concepts/tiles.md) explains it.
"""
