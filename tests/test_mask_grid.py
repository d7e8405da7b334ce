"""Every mask x case x length x offset x block size: rule, dense form, tile states and block lists, with no sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from attn_mods import masks
from attn_mods.entry import Case, Entry
from attn_mods.mask import Mask
from attn_mods.tiles import Grid
from attn_mods.verification import check_picture, rule_matrix
from tests.block_mask_equality import assert_same_block_mask, assert_sound

LENGTHS = (1, 5, 45, 97, 128, 129, 300)
BLOCK_SIZES = ((16, 16), (32, 32), (64, 128), (128, 64), (256, 128))

ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]
CASES = [(entry, name) for entry in ENTRIES for name in entry.cases]


def case_id(value: Any) -> str:
    return value.name if isinstance(value, Entry) else str(value)


def lengths_of(case: Case) -> Iterator[tuple[int, int]]:
    """The full square of lengths, or those that the parameters fix."""
    return iter(case.lengths or [(q_len, kv_len) for q_len in LENGTHS for kv_len in LENGTHS])


def offsets_of(mask: Mask, q_len: int, kv_len: int) -> list[int | None]:
    """0 and kv_len - q_len; None, no offset at all, where the rule does not read i as a position of the keys."""
    if mask.frame != "self":
        return [None]
    return sorted({0, kv_len - q_len})


def place(mask: Mask, q_len: int, kv_len: int, offset: int | None) -> Mask | None:
    """The placed mask; None where its parameters do not describe the queries, which must be refused."""
    beyond = (offset or 0) + q_len > kv_len
    try:
        return mask.place(q_len, kv_len, offset)
    except ValueError as error:
        assert beyond, f"refused although the parameters describe the positions: {error}"
        return None


def dense_of(mask: Mask, q_len: int, kv_len: int) -> Tensor:
    dense = mask.dense(q_len, kv_len)
    while dense.ndim < 4:
        dense = dense[None]
    return dense.expand(*mask.batch_and_heads(), q_len, kv_len)


def check_blocks(mask: Mask, dense: Tensor, block_size: tuple[int, int], place_name: str) -> None:
    """Tile states are sound and lists equal eager torch's."""
    batch, heads = mask.batch_and_heads()
    q_len, kv_len = dense.shape[-2:]
    grid = Grid(q_len, kv_len, block_size, B=batch, H=heads)
    assert_sound(mask.tile_states(grid), dense, grid)
    got = mask.placed_block_mask(q_len, kv_len, block_size=block_size)
    expected = create_block_mask(mask.mask_mod(), batch, heads, q_len, kv_len, "cpu", BLOCK_SIZE=block_size)
    expected.mask_mod = got.mask_mod
    try:
        assert_same_block_mask(got, expected)
    except AssertionError as error:
        raise AssertionError(f"{place_name}: {error}") from error


@pytest.mark.parametrize(("entry", "case_name"), CASES, ids=case_id)
def test_grid(entry: Entry, case_name: str, record_property: Any) -> None:
    case = entry.cases[case_name]
    lengths = list(lengths_of(case))
    executed = refused = planned = 0
    for q_len, kv_len in lengths:
        mask = case.make(q_len, kv_len, "cpu")
        for offset in offsets_of(mask, q_len, kv_len):
            planned += 1
            where = f"{entry.name} {case_name} q_len={q_len} kv_len={kv_len} q_offset={offset}"
            placed = place(mask, q_len, kv_len, offset)
            if placed is None:
                refused += 1
                continue
            dense = dense_of(placed, q_len, kv_len)
            ruled = rule_matrix(placed, q_len, kv_len, dense.device)
            assert torch.equal(ruled, dense), f"{where}: rule and dense form differ"
            for block_size in BLOCK_SIZES:
                check_blocks(placed, dense, block_size, f"{where} block_size={block_size}")
                executed += 1
    assert executed == (planned - refused) * len(BLOCK_SIZES)
    assert executed > 0
    assert planned >= len(lengths)
    record_property("grid cases", executed)
    record_property("grid cases refused", refused)


@pytest.mark.parametrize("entry", ENTRIES, ids=case_id)
def test_picture(entry: Entry) -> None:
    row = check_picture(entry)
    assert row.outcome == "ok", row.detail


def test_every_entry_has_the_full_square_or_lengths_of_its_own() -> None:
    for entry, case_name in CASES:
        case = entry.cases[case_name]
        assert len(list(lengths_of(case))) == len(LENGTHS) ** 2 or case.lengths, f"{entry.name} {case_name}"
