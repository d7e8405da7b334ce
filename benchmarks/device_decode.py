"""The BlockMask of one query, at one position after the other: what every step of decoding pays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import list_bytes
from benchmarks.device_build import guarded, warm_up, without_none
from benchmarks.device_clock import compilations, observed, timed
from benchmarks.gate import BLOCK_SIZE, GATE_SEED, difference
from benchmarks.measured_masks import MASKS, PRINCIPAL
from benchmarks.methods import forget_block_masks, settle

LENGTHS = (8_192, 131_072)
STEPS, WARM_STEPS = 200, 8
GATED_EVERY = 25


@dataclass(frozen=True)
class Cell:
    """One cell to measure."""

    mask: str
    length: int


def cells(masks: Iterable[str], lengths: Iterable[int]) -> list[Cell]:
    """The cells asked for; nothing but what is always decoded with."""
    return [Cell(*names) for names in itertools.product(masks, lengths) if names[0] in PRINCIPAL]


def describe(cell: Cell) -> dict[str, Any]:
    """The part of a cell's record that is known before it is measured."""
    return {
        "record": "cell",
        "what": "block_mask_decode",
        "recipe": cell.mask,
        "parameters": MASKS[cell.mask].described | {"first_position": _first(cell), "steps": STEPS},
        "backend": "attn_mods",
        "shape": {"B": 1, "H": 1, "q_len": 1, "kv_len": cell.length, "block_size": [BLOCK_SIZE, BLOCK_SIZE]},
    }


def _first(cell: Cell) -> int:
    """The first position that is timed: in the middle, across the edge of a block."""
    return cell.length // 2 - STEPS // 2


def records(todo: Iterable[Cell], device: str) -> Iterator[dict[str, Any]]:
    """The record of each cell, when it is measured."""
    warm_up(device)
    for cell in todo:
        yield describe(cell) | guarded(partial(_measured, cell, device))


def _measured(cell: Cell, device: str) -> dict[str, Any]:
    step, step_on_cpu = _steps(cell, device), _steps(cell, "cpu")
    forget_block_masks()
    first = _first(cell)
    _, first_ms = timed(partial(step, first - WARM_STEPS), device)
    for position in range(first - WARM_STEPS, first):
        settle()
        step(position)
    for position in range(first, first + STEPS, GATED_EVERY):
        wrong = difference(step(position), step_on_cpu(position))
        if wrong is not None:
            return {"status": "wrong", "message": f"{wrong} at position {position}"}
    settle()
    with compilations() as made:
        samples = [timed(partial(step, at), device)[1] for at in range(first, first + STEPS)]
        settle()
    peak, launches = observed(partial(step, first), device)
    timing = {"first_ms": first_ms, "samples_ms": samples, "peak_bytes": peak, "launches": launches}
    counted = without_none(timing | {"compilations": None if made is None else made.count})
    lists = {"lists_bytes": list_bytes(step(first))}
    return {"status": "ok", "gate": "lists equal those made on the CPU"} | counted | lists


def _steps(cell: Cell, device: str) -> Callable[[int], BlockMask]:
    """The BlockMask of the query at a position, by one mask for all positions."""
    make = MASKS[cell.mask].entry
    if make is None:
        raise ValueError(f"{cell.mask}: no entry has this rule; choose another mask")
    mask = make(**MASKS[cell.mask].parameters(cell.length, GATE_SEED, device))
    return lambda position: mask.block_mask(1, cell.length, device=device, block_size=BLOCK_SIZE, q_offset=position)
