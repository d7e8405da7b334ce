"""The grid: tile counts, positions, and the reduction of positions to tiles."""

from __future__ import annotations

import pytest
import torch

from attn_mods.tiles import Grid
from attn_mods.tiles.grid import HEAD, KEY, QUERY, per_tile


def test_ragged_grid() -> None:
    grid = Grid(300, 129, (128, 64), B=2, H=3, q_offset=7, kv_offset=torch.tensor([5]))
    assert (grid.rows, grid.columns) == (3, 3)
    assert (grid.q_offset, grid.kv_offset) == (7, 5)
    assert grid.index_values(QUERY, 2, 4).tolist() == [[[[9], [10]]]]
    assert grid.index_values(KEY).flatten().tolist() == list(range(5, 134))
    assert grid.index_values(HEAD).shape == (1, 3, 1, 1)
    assert not grid.is_empty
    assert Grid(0, 4).is_empty


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q_len": -1, "kv_len": 1}, "q_len must be >= 0, got -1"),
        ({"q_len": 1, "kv_len": 1, "block_size": (0, 128)}, "at least 1 position"),
        ({"q_len": 1, "kv_len": 1, "B": -2}, "B must be >= 0, got -2"),
    ],
)
def test_bad_grid(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("variable", [QUERY, KEY])
def test_per_tile_is_the_extreme_of_each_tile(length: int, variable: int) -> None:
    values = torch.randint(0, 100, (2, 1, length, 1, 3), generator=torch.Generator().manual_seed(length))
    if variable == KEY:
        values = values.transpose(2, 3)
    axis = 2 if variable == QUERY else 3
    tiles = per_tile(values, variable, 4, torch.amax)
    assert tiles.shape[axis] == -(-length // 4)
    for tile, part in enumerate(values.split(4, axis)):
        assert torch.equal(tiles.select(axis, tile), part.amax(axis))
