"""The algebra of tile states holds for every pair of tiles that the states may stand for."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from attn_mods.tiles import EMPTY, FULL, MIXED, UNKNOWN, States

TILES = [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product((0, 1), repeat=3)]


def code_of(tile: torch.Tensor) -> int:
    return FULL if tile.all() else MIXED if tile.any() else EMPTY


def tiles_of(code: int) -> Iterator[torch.Tensor]:
    return (tile for tile in TILES if code in (UNKNOWN, code_of(tile)))


def one(code: int) -> States:
    return States(torch.tensor(code, dtype=torch.uint8).reshape(1, 1, 1, 1))


@pytest.mark.parametrize("operation", [operator.and_, operator.or_, operator.xor])
@pytest.mark.parametrize(("a", "b"), list(itertools.product((EMPTY, FULL, MIXED, UNKNOWN), repeat=2)))
def test_binary_operations_are_as_sharp_as_the_states_allow(operation: Callable[..., Any], a: int, b: int) -> None:
    possible = {code_of(operation(x, y)) for x in tiles_of(a) for y in tiles_of(b)}
    expected = possible.pop() if len(possible) == 1 else UNKNOWN
    assert operation(one(a), one(b)).codes.item() == expected


@pytest.mark.parametrize(("code", "inverse"), [(EMPTY, FULL), (FULL, EMPTY), (MIXED, MIXED), (UNKNOWN, UNKNOWN)])
def test_complement(code: int, inverse: int) -> None:
    assert (~one(code)).codes.item() == inverse


def test_states_broadcast_over_batch_and_heads() -> None:
    a = States(torch.full((2, 1, 3, 4), FULL, dtype=torch.uint8))
    b = States(torch.full((1, 5, 3, 4), MIXED, dtype=torch.uint8))
    assert (a & b).codes.shape == (2, 5, 3, 4)
    assert (a & b).codes.dtype == torch.uint8


def test_planes_to_codes() -> None:
    every = torch.tensor([False, True, False, False]).reshape(1, 1, 1, 4)
    some = torch.tensor([False, True, True, True]).reshape(1, 1, 1, 4)
    mixed = torch.tensor([False, False, True, False]).reshape(1, 1, 1, 4)
    assert States.from_planes(every, some, mixed).codes.flatten().tolist() == [EMPTY, FULL, MIXED, UNKNOWN]


def test_bad_codes() -> None:
    with pytest.raises(TypeError, match="uint8"):
        States(torch.zeros(1, 1, 1, 1))
    with pytest.raises(ValueError, match="rows, columns"):
        States(torch.zeros(2, 2, dtype=torch.uint8))
