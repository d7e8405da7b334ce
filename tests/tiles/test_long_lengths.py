"""65,536 tokens: enough tiles that the calculus goes from coarse to fine by its own thresholds, held against formulas.

The expected states come from the first and last position of each block alone, by the meaning of each mask; nothing of
the calculus is used, and no position is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, analyse, calculus

LENGTH, BLOCK = 65536, 128
COUNT = LENGTH // BLOCK
FIRST = torch.arange(COUNT) * BLOCK
LAST = FIRST + BLOCK - 1

Planes = tuple[Tensor, Tensor]  # (some pair of the tile is kept, every pair is kept)
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def difference() -> Planes:
    """Least and greatest i - j of each tile."""
    return FIRST[:, None] - LAST, LAST[:, None] - FIRST


def causal() -> tuple[Rule, Planes]:
    least, greatest = difference()
    return lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, (greatest >= 0, least >= 0)


def window() -> tuple[Rule, Planes]:
    least, greatest = difference()
    size = 1000
    some = (greatest >= 0) & (least < size)
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < size), (
        some,
        (least >= 0) & (greatest < size),
    )


def document_ids() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    cuts = torch.randperm(LENGTH - 1, generator=generator)[:40] + 1
    marks = torch.zeros(LENGTH, dtype=torch.long)
    marks[cuts] = 1
    return marks.cumsum(0)


def document() -> tuple[Rule, Planes]:
    ids = document_ids()
    low, high = ids[FIRST], ids[LAST]
    some = (low[:, None] <= high) & (low <= high[:, None])
    one = low == high
    every = one[:, None] & one & (low[:, None] == low)
    return lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], (some, every)


def document_causal() -> tuple[Rule, Planes]:
    ids = document_ids()
    _, (some, every) = document()
    below, diagonal = FIRST[:, None] > LAST, torch.eye(COUNT, dtype=torch.bool)
    rule: Rule = lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)  # noqa: E731
    return rule, ((some & below) | diagonal, every & below)


def far_apart() -> tuple[Rule, Planes]:
    least, greatest = difference()
    nearest = torch.maximum(least, -greatest).clamp(min=0)
    farthest = torch.maximum(-least, greatest)
    return lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() > 30000, (farthest > 30000, nearest > 30000)


MASKS = {"causal": causal, "window": window, "document": document, "document causal": document_causal, "far": far_apart}


@pytest.mark.parametrize("name", MASKS)
def test_states_at_length(name: str) -> None:
    rule, (some, every) = MASKS[name]()
    assert COUNT * COUNT >= calculus._COARSE_FROM, "too few tiles to go from coarse to fine: raise LENGTH"
    analysis = analyse(rule, Grid(LENGTH, LENGTH, (BLOCK, BLOCK)))
    expected = torch.where(every, FULL, torch.where(some, MIXED, EMPTY)).to(torch.uint8)
    differs = (analysis.states.codes[0, 0] != expected).nonzero()
    assert not len(differs), f"{len(differs)} tiles differ, first {differs[0].tolist()}"
    assert analysis.scanned == 0
