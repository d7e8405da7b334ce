"""Building a BlockMask: ours against eager torch.create_block_mask, rules written as a user's closures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import create_block_mask
from attn_mods.mask import MaskMod
from benchmarks.clock import measure
from benchmarks.measured_masks import MASKS, PRINCIPAL

BLOCK_SIZE = 128
LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
         "full_q_num_blocks", "full_q_indices")  # fmt: skip
TORCH_BYTES_PER_PAIR = 10
"""Memory of eager torch.create_block_mask per (query, key) pair, used only to skip what cannot fit."""


@dataclass(frozen=True)
class Cell:
    """One cell to measure."""

    recipe: str
    length: int
    backend: str


BACKENDS: dict[str, Callable[..., BlockMask]] = {
    "attn_mods": create_block_mask,
    "torch_eager": flex_attention.create_block_mask,
}


def fresh_rule(name: str, length: int, seed: int) -> MaskMod:
    """The closure of a mask over the values of a seed."""
    return MASKS[name].fresh_closure(length, seed, "cpu")


RULES: dict[str, Callable[[int, int], MaskMod]] = {name: partial(fresh_rule, name) for name in PRINCIPAL}


def cells(lengths: tuple[int, ...]) -> Iterator[Cell]:
    """All cells of the suite, backends of one rule and length next to each other."""
    for length, recipe, backend in itertools.product(lengths, RULES, BACKENDS):
        yield Cell(recipe, length, backend)


def describe(cell: Cell) -> dict[str, Any]:
    """The part of a cell's record that is known before it is measured."""
    return {
        "record": "cell",
        "what": "block_mask_build",
        "recipe": cell.recipe,
        "parameters": MASKS[cell.recipe].described,
        "backend": cell.backend,
        "shape": {"B": 1, "H": 1, "q_len": cell.length, "kv_len": cell.length, "block_size": [BLOCK_SIZE, BLOCK_SIZE]},
    }


def run(cell: Cell, available_bytes: int, seconds: float) -> dict[str, Any]:
    """Measure one cell; what cannot fit in memory is skipped by name, what differs from torch gets no time."""
    row = describe(cell)
    needed = TORCH_BYTES_PER_PAIR * cell.length**2
    if cell.backend == "torch_eager" and needed > available_bytes:
        message = f"needs about {needed >> 30} GiB, {available_bytes >> 30} are free"
        return row | {"status": "skipped", "message": message}
    build, make_rule = BACKENDS[cell.backend], RULES[cell.recipe]
    difference = gate(build, make_rule)
    if difference is not None:
        return row | {"status": "wrong", "message": difference}
    seeds = itertools.count(1)

    def make_call() -> Callable[[], BlockMask]:
        rule = make_rule(cell.length, next(seeds))
        return lambda: build(rule, None, None, cell.length, cell.length, "cpu", BLOCK_SIZE)

    timing = measure(make_call, seconds, most=200)
    lists = lists_bytes(make_call()())
    return row | {"status": "ok", "gate": "lists equal eager torch at 2,048", "lists_bytes": lists, **asdict(timing)}


def gate(build: Callable[..., BlockMask], make_rule: Callable[[int, int], MaskMod]) -> str | None:
    """The first list that differs from eager torch's at 2,048 tokens, or None."""
    rule = make_rule(2048, 0)
    got, expected = (
        f(rule, None, None, 2048, 2048, "cpu", BLOCK_SIZE) for f in (build, flex_attention.create_block_mask)
    )
    for counts, indices in zip(LISTS[::2], LISTS[1::2], strict=True):
        valid = torch.arange(getattr(expected, indices).shape[-1]) < getattr(expected, counts)[..., None]
        if not torch.equal(getattr(got, counts), getattr(expected, counts)):
            return f"{counts} differs"
        if not torch.equal(getattr(got, indices)[valid], getattr(expected, indices)[valid]):
            return f"{indices} differs"
    return None


def lists_bytes(block_mask: BlockMask) -> int:
    """Bytes of the lists as torch lays them out."""
    return sum(getattr(block_mask, name).numel() * 4 for name in LISTS)
