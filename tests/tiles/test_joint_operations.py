"""Each joint operation by itself: sound on every tile, and as sharp as it is meant to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mods.tiles import UNKNOWN, Grid, analyse, tile_states
from tests.block_mask_equality import assert_sound, dense_truth

TABLE = torch.arange(200).remainder(17)
FLAGS = torch.arange(200).remainder(11) > 2
PAIRS = torch.rand(64, 64, generator=torch.Generator().manual_seed(3)) < 0.9
HEADS = torch.tensor([3, 7])
SORTED = torch.tensor([-30, -4, 0, 9, 9, 33])
FLOATS = torch.linspace(-2, 3, 64)

# Rules without an UNKNOWN tile: the operation is exact on every tile.
EXACT: dict[str, Callable[..., Any]] = {
    "add": lambda b, h, q, k: q + k < 50,
    "sub": lambda b, h, q, k: q - k <= 9,
    "neg": lambda b, h, q, k: -(q + k) > -40,
    "mul by a constant": lambda b, h, q, k: 3 * q >= 2 * k,
    "abs": lambda b, h, q, k: (q - k).abs() == 5,
    "square": lambda b, h, q, k: torch.square(q - k) <= 25,
    "minimum": lambda b, h, q, k: torch.minimum(q, k) < 20,
    "maximum": lambda b, h, q, k: torch.maximum(q, k) == 20,
    "clamp": lambda b, h, q, k: (q - k).clamp(-3, 8) == 8,
    "floor_divide": lambda b, h, q, k: (q - k) // 5 == -2,
    "floor_divide by a negative": lambda b, h, q, k: (q - k) // -5 == 2,
    "floor_divide per head": lambda b, h, q, k: (q - k) // HEADS[h] == 1,
    "truncate_divide": lambda b, h, q, k: torch.div(q - k, 5, rounding_mode="trunc") == 0,
    "remainder": lambda b, h, q, k: (q - k) % 4 == 1,
    "remainder by a negative": lambda b, h, q, k: (q - k) % -4 == -1,
    "low bits": lambda b, h, q, k: (q - k) & 7 == 3,
    "shift_left": lambda b, h, q, k: (q - k) << 2 < 40,
    "shift_right": lambda b, h, q, k: (q - k) >> 2 == 3,
    "divide": lambda b, h, q, k: (q - k) / 4 < 2.5,
    "cast": lambda b, h, q, k: (q - k).float() <= 3.0,
    "lookup of flags": lambda b, h, q, k: FLAGS[q - k + 64],
    "lookup of pairs": lambda b, h, q, k: PAIRS[q, k],
    "lookup of blocks of pairs": lambda b, h, q, k: PAIRS[q // 8, k // 8],
    "isin": lambda b, h, q, k: torch.isin(q - k, torch.tensor([0, 3, 50])),
    "searchsorted": lambda b, h, q, k: torch.searchsorted(SORTED, q - k, right=True) >= 3,
    "floats": lambda b, h, q, k: FLOATS[q] + FLOATS[k] > 0.5,
    "truth as a number": lambda b, h, q, k: (q >= k).long() * 5 > 2,
    "numbers as truths": lambda b, h, q, k: torch.logical_not(q - k),
}

# Rules that the calculus leaves open on some tile, soundly.
LOOSE: dict[str, Callable[..., Any]] = {
    "product": lambda b, h, q, k: q * k % 13 == 5,
    "one variable twice": lambda b, h, q, k: (q - k) * (q + k) < 9,
    "fmod": lambda b, h, q, k: torch.fmod(q - k, 6) == -2,
    "lookup of numbers": lambda b, h, q, k: TABLE[q - k + 64] > 8,
    "where": lambda b, h, q, k: torch.where(q > k, q - k, k * 2) < 30,
    "where of truths": lambda b, h, q, k: torch.where(q > k, k > 9, q - k < 7),
    "exclusive or": lambda b, h, q, k: (q > k) ^ (q - k > 12),
    "any": lambda b, h, q, k: torch.stack([q > k, q - k < -30]).any(),
    "sum": lambda b, h, q, k: torch.stack([q > k, q + k > 50, q - k < 9]).sum() >= 2,
    "narrow dtype": lambda b, h, q, k: (q - k).to(torch.int8) + 100 < 0,
    "unknown operation": lambda b, h, q, k: torch.sin((q - k).float()) > 0.5,
    "unknown and empty": lambda b, h, q, k: (torch.sin((q - k).float()) > 0.5) & (q < k - 20),
}
GRIDS = [Grid(64, 64, (8, 16), H=2), Grid(45, 61, (16, 16), H=2), Grid(1, 64, (8, 8), H=2)]


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch loops over isin
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    for grid in GRIDS:
        states = tile_states(EXACT[name], grid)
        assert_sound(states, dense_truth(EXACT[name], 1, grid.H, grid.q_len, grid.kv_len), grid)
        assert not bool((states.codes == UNKNOWN).any()), grid


@pytest.mark.parametrize("name", LOOSE)
def test_loose(name: str) -> None:
    for grid in GRIDS:
        states = tile_states(LOOSE[name], grid)
        assert_sound(states, dense_truth(LOOSE[name], 1, grid.H, grid.q_len, grid.kv_len), grid)
    assert analyse(LOOSE[name], GRIDS[0]).reason is None


def test_unknown_and_empty_is_empty() -> None:
    codes = tile_states(LOOSE["unknown and empty"], GRIDS[0]).codes[0, 0]
    assert codes[-1, 0] == 0
    assert bool((codes == UNKNOWN).any())


@pytest.mark.parametrize(
    ("rule", "batch", "heads"),
    [
        (lambda b, h, q, k: torch.sin((q + b).float()) > torch.cos(k.float()), 2, 1),
        (lambda b, h, q, k: torch.sin((q + k * h).float()) > 0.5, 1, 3),
        (lambda b, h, q, k: torch.sin((q + k).float()) > 0.5, 1, 1),
    ],
)
def test_unknown_keeps_the_extent_it_depends_on(rule: Callable[..., Any], batch: int, heads: int) -> None:
    grid = Grid(32, 32, (8, 8), B=2, H=3)
    assert tile_states(rule, grid).codes.shape[:2] == (batch, heads)
    analysis = analyse(rule, grid)
    assert_sound(analysis.states, dense_truth(rule, 2, 3, 32, 32), grid)
