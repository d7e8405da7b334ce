"""Selected blocks against the definition pair by pair, exact tile states, and errors."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import SelectedBlocks
from attn_mods.tiles import UNKNOWN, Grid
from tests.block_mask_equality import assert_sound


def test_the_definition_pair_by_pair() -> None:
    indices = torch.tensor([[[[2, 0], [1, -1], [-1, -1]], [[1, 1], [0, 2], [2, 0]]]])
    mask = SelectedBlocks.from_indices(indices, q_block=2, kv_block=3, kv_len=8)
    assert mask.batch_and_heads() == (1, 2)
    dense = mask.dense(6, 8)
    for h in range(2):
        for i in range(6):
            for j in range(8):
                assert bool(dense[0, h, i, j]) == (j // 3 in indices[0, h, i // 2].tolist())


def random_table(batch: int, heads: int, rows: int, columns: int) -> torch.Tensor:
    return torch.rand(batch, heads, rows, columns, generator=torch.Generator().manual_seed(rows)) < 0.5


@pytest.mark.parametrize("block_size", [(16, 16), (7, 50), (128, 64), (1, 1)])
@pytest.mark.parametrize(("q_block", "kv_block"), [(1, 16), (8, 8), (32, 5), (300, 300)])
@pytest.mark.parametrize("offset", [0, 37])
def test_tile_states_are_exact(q_block: int, kv_block: int, block_size: tuple[int, int], offset: int) -> None:
    length, queries = 100, 60
    mask = SelectedBlocks(random_table(2, 3, -(-length // q_block), -(-length // kv_block)), q_block, kv_block)
    grid = Grid(queries, length, block_size, B=2, H=3, q_offset=offset)
    states = mask.tile_states(grid)
    assert_sound(states, mask.dense(length, length)[:, :, offset : offset + queries], grid)
    assert not bool((states.codes == UNKNOWN).any())


@pytest.mark.parametrize(
    ("table", "blocks", "error", "text"),
    [
        (torch.ones(1, 1, 2, 2), (4, 4), TypeError, "selected_blocks: table must be a boolean tensor"),
        (torch.ones(2, 2, dtype=torch.bool), (4, 4), ValueError, "selected_blocks: table must have 4 dimensions"),
        (torch.ones(1, 1, 2, 2, dtype=torch.bool), (0, 4), ValueError, "selected_blocks: q_block must be >= 1"),
        (torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, 2**16, 2**15), (1, 1), ValueError, "fewer than 2.31"),
    ],
)
def test_errors(table: torch.Tensor, blocks: tuple[int, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        SelectedBlocks(table, *blocks)


def test_indices_outside_of_the_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="indices must be below 3, got 3"):
        SelectedBlocks.from_indices(torch.tensor([[[[3]]]]), 4, 4, kv_len=12)
    with pytest.raises(ValueError, match="indices must be >= -1"):
        SelectedBlocks.from_indices(torch.tensor([[[[-2]]]]), 4, 4, kv_len=12)


def test_lengths() -> None:
    mask = SelectedBlocks(torch.ones(1, 1, 2, 3, dtype=torch.bool), q_block=4, kv_block=4)
    mask.place(8, 9)
    with pytest.raises(ValueError, match="table must have 4 columns, got 3 for 13 keys in blocks of 4"):
        mask.place(8, 13)
    with pytest.raises(ValueError, match="the 2 rows of table end at query 8, got 9"):
        mask.place(9, 12)
