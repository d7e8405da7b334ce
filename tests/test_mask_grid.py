"""Every mask x case x length x offset x block size: rule, dense form, tile states and block lists, with no sampling."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask, create_mask

from attn_mods import masks
from attn_mods.entry import Case, Entry
from attn_mods.entry_checks import check_picture, dense_of
from attn_mods.mask import Mask
from attn_mods.tiles import Grid, States, analysis
from attn_mods.tiles.trace import recorded
from tests.block_mask_equality import assert_same_block_mask, assert_sound

LENGTHS = (1, 5, 45, 97, 128, 129, 300)
SQUARE = [(q_len, kv_len) for q_len in LENGTHS for kv_len in LENGTHS]
BLOCK_SIZES = ((16, 16), (32, 32), (64, 128), (128, 64), (256, 128))

ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]
ENDS_AT_KV_LEN = {
    "area",
    "block_diffusion",
    "cumsum_ar",
    "document",
    "document_causal",
    "multimodal_spans",
    "neighborhood",
    "shared_prefix",
    "sliding_tile",
}
"""Entries whose parameters say something of each of kv_len positions, and of no query beyond."""
DEFINED = {
    "block_diffusion": lambda q_len, kv_len: kv_len % 2 == 0,  # the keys are two halves of equal length
    "tree_verification": lambda q_len, kv_len: q_len <= kv_len,  # the queries are the last keys, after a prefix
}
"""Entries that have no parameters for some pairs of lengths, and the pairs for which they have."""
CASES = [(entry, name) for entry in ENTRIES for name in entry.cases]


def case_id(value: Any) -> str:
    return value.name if isinstance(value, Entry) else str(value)


def lengths_of(case: Case) -> list[tuple[int, int]]:
    """The full square of lengths, and those of the case's own that are not in it."""
    return SQUARE + [lengths for lengths in case.lengths or () if lengths not in SQUARE]


def is_defined(entry: Entry, q_len: int, kv_len: int) -> bool:
    """Whether the entry has parameters for these lengths; if not it must refuse them."""
    return entry.name not in DEFINED or DEFINED[entry.name](q_len, kv_len)


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


def assert_undefined(entry: Entry, case: Case, q_len: int, kv_len: int) -> None:
    """No parameters can be made for these lengths, or those that can do not fit them."""
    rule = r"(length|prefix|its parameters describe) .*, got (a smallest value of )?-?\d+; "
    with pytest.raises(ValueError, match=f"^{entry.name}: {rule}"):
        case.make(q_len, kv_len, "cpu").place(q_len, kv_len, 0)


def placements(lengths: list[tuple[int, int]], frame: str) -> int:
    """How often a mask is placed: once for equal lengths and where it takes no offset, else at two offsets."""
    diagonal = sum(q_len == kv_len for q_len, kv_len in lengths)
    return 2 * len(lengths) - diagonal if frame == "self" else len(lengths)


def refusals(entry: Entry, case: Case, lengths: list[tuple[int, int]]) -> int:
    """How many placements are refused: more queries than keys, the first of both at one position."""
    if entry.name in ENDS_AT_KV_LEN:
        return sum(q_len > kv_len for q_len, kv_len in lengths)
    if entry.name == "selected_blocks":
        tables = [(q_len, case.make(q_len, kv_len, "cpu")) for q_len, kv_len in lengths]
        return sum(q_len > mask.table.shape[-2] * mask.q_block for q_len, mask in tables)
    return 0


def ordered_to_dense(counts: Tensor, indices: Tensor, columns: int | None = None) -> Tensor:
    """What torch's private function of this name returns, without two vmaps that take most of its time."""
    columns = indices.shape[-1] if columns is None else columns  # in 2.11 it is told none
    counted = torch.arange(indices.shape[-1]) < counts[..., None]
    dense = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.int32)
    return dense.scatter(-1, torch.where(counted, indices, columns).long(), 1)[..., :columns].contiguous()


def torch_block_masks(mask: Mask, ruled: Tensor) -> list[BlockMask]:
    """torch's own BlockMasks in all block sizes, from the rule at every position, which it evaluates only once."""
    batch, heads, q_len, kv_len = ruled.shape
    with (
        mock.patch.object(flex_attention, "create_mask", return_value=ruled),
        mock.patch.object(flex_attention, "_ordered_to_dense", ordered_to_dense),
    ):
        return [
            flex_attention.create_block_mask(mask.mask_mod(), batch, heads, q_len, kv_len, "cpu", BLOCK_SIZE=block_size)
            for block_size in BLOCK_SIZES
        ]


def block_mask_and_states(mask: Mask, grid: Grid, record: Callable[..., Any]) -> tuple[BlockMask, States]:
    """The BlockMask, and the claims about its tiles that it was made from, before the unknown ones were settled."""
    claims = []

    def settle(rule: Any, grid: Grid, codes: Tensor, graph: Any, reason: str | None) -> Any:
        claims.append(States(codes.clone()))
        return settled(rule, grid, codes, graph, reason)

    settled = analysis._settle
    with mock.patch.object(analysis, "_settle", settle), mock.patch.object(analysis, "recorded", record):
        block_mask = mask.placed_block_mask(grid.q_len, grid.kv_len, block_size=grid.block_size)
    (states,) = claims
    return block_mask, states


def check_blocks(mask: Mask, dense: Tensor, expected: list[BlockMask], where: str) -> int:
    """Tile states are sound and lists equal eager torch's, in all block sizes; the rule is recorded only once."""
    batch, heads, q_len, kv_len = dense.shape
    graph = functools.cache(lambda: recorded(mask.mask_mod(), Grid(q_len, kv_len, B=batch, H=heads)))
    for block_size, theirs in zip(BLOCK_SIZES, expected, strict=True):
        grid = Grid(q_len, kv_len, block_size, B=batch, H=heads)
        got, states = block_mask_and_states(mask, grid, lambda *_: graph())
        theirs.mask_mod = got.mask_mod
        try:
            assert_sound(states, dense, grid)
            assert_same_block_mask(got, theirs, expected_is_well_formed=True)
        except AssertionError as error:
            raise AssertionError(f"{where} block_size={block_size}: {error}") from error
    return len(expected)


@pytest.mark.parametrize(("entry", "case_name"), CASES, ids=case_id)
def test_grid(entry: Entry, case_name: str, record_property: Any) -> None:
    case = entry.cases[case_name]
    lengths = lengths_of(case)
    defined = [pair for pair in lengths if is_defined(entry, *pair)]
    executed = refused = 0
    frames = set()
    for q_len, kv_len in lengths:
        if (q_len, kv_len) not in defined:
            assert_undefined(entry, case, q_len, kv_len)
            refused += 1
            continue
        mask = case.make(q_len, kv_len, "cpu")
        frames.add(mask.frame)
        for offset in offsets_of(mask, q_len, kv_len):
            where = f"{entry.name} {case_name} q_len={q_len} kv_len={kv_len} q_offset={offset}"
            placed = place(entry, mask, q_len, kv_len, offset)
            if placed is None:
                refused += 1
                continue
            dense = dense_of(placed, q_len, kv_len)
            ruled = create_mask(placed.mask_mod(), *placed.batch_and_heads(), q_len, kv_len, "cpu")
            assert torch.equal(ruled, dense), f"{where}: rule and dense form differ"
            executed += check_blocks(placed, dense, torch_block_masks(placed, ruled), where)
    (frame,) = frames
    misplaced = refusals(entry, case, defined)
    assert refused == misplaced + len(lengths) - len(defined)
    assert executed == (placements(defined, frame) - misplaced) * len(BLOCK_SIZES)
    assert executed >= len(defined)
    record_property("grid cases", executed)
    record_property("grid cases refused", refused)


@pytest.mark.parametrize("entry", ENTRIES, ids=case_id)
def test_picture(entry: Entry) -> None:
    row = check_picture(entry)
    assert row.outcome == "ok", row.detail


@pytest.mark.parametrize("shape", [(1, 1, 3, 5), (2, 3, 7, 4), (1, 2, 0, 4), (2, 1, 6, 1)])
def test_lists_become_tables_as_torch_makes_them(shape: tuple[int, ...]) -> None:
    batch, heads, rows, columns = shape
    for _ in range(5):
        counts = torch.randint(0, columns + 1, (batch, heads, rows), dtype=torch.int32)
        indices = torch.rand(shape).argsort(-1).int()
        told = (columns,) if len(inspect.signature(flex_attention._ordered_to_dense).parameters) == 3 else ()
        expected = flex_attention._ordered_to_dense(counts, indices, *told)
        got = ordered_to_dense(counts, indices, *told)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_the_grid_is_the_full_square() -> None:
    assert placements(SQUARE, "self") == 49 + 49 - 7
    assert placements(SQUARE, "cross") == 49
    for entry, case_name in CASES:
        case = entry.cases[case_name]
        pairs = lengths_of(case)
        assert pairs[:49] == SQUARE
        assert set(pairs[49:]) == set(case.lengths or ()) - set(SQUARE)
        assert all(is_defined(entry, *pair) for pair in pairs[49:])
        if entry.name in ENDS_AT_KV_LEN - DEFINED.keys():
            assert refusals(entry, case, pairs) == 7 * 6 // 2
    undefined = {entry.name: sum(not is_defined(entry, *pair) for pair in SQUARE) for entry in ENTRIES}
    assert {name: count for name, count in undefined.items() if count} == {
        "block_diffusion": 7 * 5,
        "tree_verification": 7 * 6 // 2,
    }
    assert {entry.name for entry in ENTRIES} >= ENDS_AT_KV_LEN | DEFINED.keys()
