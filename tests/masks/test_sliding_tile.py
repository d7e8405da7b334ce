"""Sliding tiles: even kernels by hand, FastVideo's and attention-gym's definitions token by token, order, errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from attn_mods.masks import Neighborhood, SlidingTile


@pytest.mark.parametrize(
    ("kernel", "even_kernel", "windows"),
    [
        pytest.param(3, "symmetric", ["012", "012", "123", "234", "345", "345"], id="odd"),
        pytest.param(2, "symmetric", ["012", "012", "123", "234", "345", "345"], id="even, FastVideo"),
        pytest.param(2, "left", ["01", "01", "12", "23", "34", "45"], id="even, attention-gym"),
        pytest.param(9, "symmetric", ["012345"] * 6, id="beyond the canvas"),
    ],
)
def test_windows_of_one_axis(kernel: int, even_kernel: Any, windows: list[str]) -> None:
    dense = SlidingTile((6,), (1,), (kernel,), even_kernel=even_kernel).dense(6, 6)
    assert dense.tolist() == [[str(j) in window for j in range(6)] for window in windows]


def clamp(value: int, low: int, high: int) -> int:
    """As torch clamps: the upper end wins."""
    return min(max(value, low), high)


@pytest.mark.parametrize("even_kernel", ["symmetric", "left"])
@pytest.mark.parametrize(
    ("canvas", "tile", "kernel", "text"),
    [
        ((4, 6), (2, 3), (1, 2), 0),
        ((2, 12), (1, 3), (2, 2), 3),
        ((4, 4, 6), (2, 1, 2), (3, 2, 1), 0),
        ((2, 6, 4), (1, 2, 2), (1, 3, 2), 5),
        ((2, 2, 2), (1, 1, 1), (4, 2, 3), 1),
    ],
)
def test_the_definition_token_by_token(
    canvas: tuple[int, ...], tile: tuple[int, ...], kernel: tuple[int, ...], text: int, even_kernel: Any
) -> None:
    tiles = [size // part for size, part in zip(canvas, tile, strict=True)]
    tokens = torch.Size(tile).numel()
    coordinates = [c for c in itertools.product(*(range(count) for count in tiles)) for _ in range(tokens)]
    total = len(coordinates) + text
    dense = SlidingTile(canvas, tile, kernel, text, even_kernel).dense(total, total)
    for i, j in itertools.product(range(total), repeat=2):
        expected = True
        if max(i, j) < len(coordinates):
            for q, kv, count, width in zip(coordinates[i], coordinates[j], tiles, kernel, strict=True):
                before, after = width // 2, width // 2
                if even_kernel == "left" and width % 2 == 0:
                    after -= 1
                centre = clamp(q, before, count - 1 - after)
                expected = expected and centre - before <= kv <= centre + after
        assert bool(dense[i, j]) == expected, (i, j)


def test_tiles_of_one_token_are_a_neighborhood() -> None:
    tiles = SlidingTile((5, 7), (1, 1), (3, 4), even_kernel="left").dense(35, 35)
    assert torch.equal(tiles, Neighborhood((5, 7), (3, 4)).dense(35, 35))


def test_tile_order_lists_raster_positions_tile_by_tile() -> None:
    assert SlidingTile((2, 4), (2, 2), (1, 1)).tile_order().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    order = SlidingTile((2, 4, 6), (1, 2, 3), (1, 1, 1)).tile_order()
    assert order[:6].tolist() == [0, 1, 2, 6, 7, 8]
    assert order.sort().values.tolist() == list(range(48))


def test_text_sees_and_is_seen_by_everything() -> None:
    dense = SlidingTile((2, 2), (1, 1), (1, 1), text=2).dense(6, 6)
    assert dense[4:].all() and dense[:, 4:].all()
    assert torch.equal(dense[:4, :4], torch.eye(4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((4, 6), (3, 3), (1, 1)), ValueError, r"tile must divide the canvas on every axis, got tile \(3, 3\)"),
        (((4, 6), (2, 3), (1,)), ValueError, "kernel must have 2 axes as the canvas has"),
        (((4, 6), (2, 3), (1, 1), -1), ValueError, "text must be >= 0, got -1"),
        (((4, 6), (2, 3), (1, 1), 0, "right"), ValueError, "even_kernel must name a form of the window"),
        (((4, 6), (2, 3), 3), TypeError, "kernel must be a tuple of ints"),
    ],
)
def test_errors(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        SlidingTile(*arguments)


def test_the_keys_are_the_canvas_and_the_text() -> None:
    with pytest.raises(ValueError, match="describe 26 tokens, so the keys must end at 26, got 24"):
        SlidingTile((4, 6), (2, 3), (1, 1), text=2).place(24, 24)
