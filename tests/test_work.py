"""count_work: what it counts block by block is what the dense mask holds."""

from __future__ import annotations

import pytest
import torch

from attn_mods import masks
from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.masks import Causal, Full, SlidingWindow
from attn_mods.tiles import EMPTY, FULL, MIXED, scanning
from attn_mods.work import Work, count_work, exact_states

ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]
CASES = [(entry, name) for entry in ENTRIES for name in entry.cases]
LENGTHS = ((97, 97), (45, 130))
BLOCK_SIZES = ((32, 32), (16, 64))


def dense_work(mask: Mask, q_len: int, kv_len: int, block_size: tuple[int, int]) -> Work:
    """The same counts, block by block of the dense mask."""
    dense = mask.dense(q_len, kv_len)
    while dense.ndim < 4:
        dense = dense[None]
    dense = dense.expand(*mask.batch_and_heads(), q_len, kv_len)
    blocks = [block for rows in dense.split(block_size[0], -2) for block in rows.split(block_size[1], -1)]
    tiles = [tile for block in blocks for tile in block.flatten(0, 1)]
    shown = [int(tile.sum()) for tile in tiles]
    return Work(
        empty=sum(count == 0 for count in shown),
        mixed=sum(0 < count < tile.numel() for count, tile in zip(shown, tiles, strict=True)),
        full=sum(count == tile.numel() for count, tile in zip(shown, tiles, strict=True)),
        pairs_kept=int(dense.sum()),
        pairs_computed=sum(tile.numel() for count, tile in zip(shown, tiles, strict=True) if count),
        pairs=dense.numel(),
    )


@pytest.mark.parametrize(("entry", "case_name"), CASES, ids=lambda value: getattr(value, "name", value))
def test_counts_equal_those_of_the_dense_mask(entry: Entry, case_name: str) -> None:
    case = entry.cases[case_name]
    for q_len, kv_len in case.lengths or LENGTHS:
        mask = case.make(q_len, kv_len, "cpu")
        offset = None if q_len == kv_len else 0
        for block_size in BLOCK_SIZES:
            expected = dense_work(mask.place(q_len, kv_len, offset), q_len, kv_len, block_size)
            assert count_work(mask, q_len, kv_len, q_offset=offset, block_size=block_size) == expected


def test_counts_of_a_causal_mask_by_hand() -> None:
    assert count_work(Causal(), 256) == Work(1, 2, 1, 256 * 257 // 2, 3 * 128 * 128, 256 * 256)


def test_a_mask_without_mixed_blocks() -> None:
    assert count_work(Full(), 100, 200, block_size=64) == Work(0, 0, 8, 20_000, 20_000, 20_000)


def test_offset_is_counted() -> None:
    last = count_work(Causal(), 64, 256, q_offset=192, block_size=64)
    assert (last.empty, last.mixed, last.full) == (0, 1, 3)
    assert last.pairs_kept == 3 * 64 * 64 + 64 * 65 // 2
    first = count_work(Causal(), 64, 256, q_offset=0, block_size=64)
    assert (first.empty, first.mixed, first.full) == (3, 1, 0)
    assert first.pairs_kept == 64 * 65 // 2


def test_unequal_lengths_need_an_offset() -> None:
    with pytest.raises(ValueError, match="needs q_offset"):
        count_work(Causal(), 64, 256)


@pytest.mark.parametrize("positions", [1, 50, 700])
def test_counting_in_small_pieces(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = SlidingWindow(window=20)
    expected = dense_work(mask, 90, 90, (32, 16))
    monkeypatch.setattr(scanning, "_POSITIONS_AT_ONCE", positions)
    assert count_work(mask, 90, block_size=(32, 16)) == expected


def test_exact_states_by_hand() -> None:
    states = exact_states(SlidingWindow(window=64).place(192, 192), 192, 192, (64, 64))
    expected = [[MIXED, EMPTY, EMPTY], [MIXED, MIXED, EMPTY], [EMPTY, MIXED, MIXED]]
    assert torch.equal(states, torch.tensor(expected, dtype=torch.uint8)[None, None])
    assert exact_states(Full(), 64, 64, (64, 64)).item() == FULL
