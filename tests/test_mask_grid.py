"""Every mask x case x length x offset x block size: rule, dense form, tile states and block lists, with no sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from attn_mods import masks
from attn_mods.entry import Case, Entry
from attn_mods.entry_checks import check_picture, rule_matrix
from attn_mods.mask import Mask
from attn_mods.tiles import Grid
from tests.block_mask_equality import assert_same_block_mask, assert_sound

LENGTHS = (1, 5, 45, 97, 128, 129, 300)
BLOCK_SIZES = ((16, 16), (32, 32), (64, 128), (128, 64), (256, 128))

ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]
ENDS_AT_KV_LEN = {
    "area",
    "cumsum_ar",
    "document",
    "document_causal",
    "multimodal_spans",
    "neighborhood",
    "shared_prefix",
    "sliding_tile",
}
"""Entries whose parameters say something of each of kv_len positions, and of no query beyond."""
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


def described_queries(entry: Entry, mask: Any, kv_len: int) -> float:
    """Where the last query may end at most, by what the entry says of its parameters."""
    if entry.name == "selected_blocks":
        return float(mask.table.shape[-2] * mask.q_block)
    return kv_len if entry.name in ENDS_AT_KV_LEN else math.inf


def place(entry: Entry, mask: Mask, q_len: int, kv_len: int, offset: int | None) -> Mask | None:
    """The placed mask; None where its parameters do not describe the queries, which must be refused."""
    if (offset or 0) + q_len > described_queries(entry, mask, kv_len):
        with pytest.raises(ValueError, match=r"^\w+: the (queries must end|\d+ rows of table end) .*, got \d+; "):
            mask.place(q_len, kv_len, offset)
        return None
    return mask.place(q_len, kv_len, offset)


def placements(case: Case, frame: str) -> int:
    """How often a mask is placed: once for equal lengths and where it takes no offset, else at two offsets."""
    if case.lengths is None:
        square, diagonal = len(LENGTHS) ** 2, len(LENGTHS)
    else:
        square, diagonal = len(case.lengths), sum(q_len == kv_len for q_len, kv_len in case.lengths)
    return 2 * square - diagonal if frame == "self" else square


def refusals(entry: Entry, case: Case) -> int:
    """How many placements are refused: of two different lengths in the square one puts the queries beyond the keys."""
    if case.lengths is None and entry.name in ENDS_AT_KV_LEN:
        return len(LENGTHS) * (len(LENGTHS) - 1) // 2
    if entry.name == "selected_blocks":
        tables = [(q_len, case.make(q_len, kv_len, "cpu")) for q_len in LENGTHS for kv_len in LENGTHS]
        return sum(q_len > mask.table.shape[-2] * mask.q_block for q_len, mask in tables)
    return 0


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
    executed = refused = 0
    frames = set()
    for q_len, kv_len in lengths:
        mask = case.make(q_len, kv_len, "cpu")
        frames.add(mask.frame)
        for offset in offsets_of(mask, q_len, kv_len):
            where = f"{entry.name} {case_name} q_len={q_len} kv_len={kv_len} q_offset={offset}"
            placed = place(entry, mask, q_len, kv_len, offset)
            if placed is None:
                refused += 1
                continue
            dense = dense_of(placed, q_len, kv_len)
            ruled = rule_matrix(placed, q_len, kv_len, dense.device)
            assert torch.equal(ruled, dense), f"{where}: rule and dense form differ"
            for block_size in BLOCK_SIZES:
                check_blocks(placed, dense, block_size, f"{where} block_size={block_size}")
                executed += 1
    (frame,) = frames
    assert refused == refusals(entry, case)
    assert executed == (placements(case, frame) - refused) * len(BLOCK_SIZES)
    assert executed >= len(lengths)
    record_property("grid cases", executed)
    record_property("grid cases refused", refused)


@pytest.mark.parametrize("entry", ENTRIES, ids=case_id)
def test_picture(entry: Entry) -> None:
    row = check_picture(entry)
    assert row.outcome == "ok", row.detail


def test_the_grid_is_the_full_square() -> None:
    assert placements(Case(lambda q_len, kv_len, device: None), "self") == 49 + 49 - 7
    assert placements(Case(lambda q_len, kv_len, device: None), "cross") == 49
    without_square = {entry.name for entry, case_name in CASES if entry.cases[case_name].lengths}
    assert without_square == {"block_diffusion", "neighborhood", "sliding_tile", "tree_verification"}
    assert {entry.name for entry in ENTRIES} >= ENDS_AT_KV_LEN
