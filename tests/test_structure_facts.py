"""Structure facts: exactly what dense masks and lists show, and enough for the loops of torch's kernels."""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import masks, structure_facts
from attn_mods.band import Band
from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.structure_facts import Facts, facts_of
from tests.block_mask_equality import tile_truth
from tests.test_band import band_matrix
from tests.test_mask_grid import CASES, case_id, is_defined, lengths_of, offsets_of, place

BLOCK_SIZES = ((16, 16), (64, 128), (128, 64), (128, 128), (256, 128))
Seen = tuple[bool, bool, bool]


def told(facts: Any) -> Seen:
    """The three facts."""
    return facts.rows_are_safe, facts.rows_are_contiguous, facts.columns_are_contiguous


def are_consecutive(blocks: Tensor) -> bool:
    """Whether no row of a bool matrix has a gap between its first and its last True."""
    runs = blocks.clone()
    runs[:, 1:] &= ~blocks[:, :-1]
    return bool((runs.sum(1) <= 1).all())


def seen(dense: Tensor, block_size: tuple[int, int], separate_full_blocks: bool) -> Seen:
    """The three facts as a dense mask shows them: bool [q_len, kv_len]."""
    q_len, kv_len = dense.shape
    q_block, kv_block = block_size
    anywhere, everywhere = (tiles[0, 0] for tiles in tile_truth(dense[None, None], block_size))
    full = everywhere & separate_full_blocks
    full[q_len // q_block :] = False
    full[:, kv_len // kv_block :] = False
    partial = anywhere & ~full
    lists = partial, full
    # The first partial block of each row, or the first full one: argmax gives the first True.
    read_first = torch.where(partial.any(1), partial.int().argmax(1), full.int().argmax(1))
    of_query = torch.arange(q_len) // q_block
    keeps = dense.gather(1, (read_first[of_query] * kv_block)[:, None])[:, 0]
    return (
        bool((keeps & anywhere.any(1)[of_query]).all()),
        all(are_consecutive(each) for each in lists),
        all(are_consecutive(each.T) for each in lists),
    )


@pytest.mark.parametrize(("entry", "case_name"), CASES, ids=case_id)
def test_facts_are_what_the_dense_mask_shows(entry: Entry, case_name: str, record_property: Any) -> None:
    case = entry.cases[case_name]
    told_of = 0
    for q_len, kv_len in lengths_of(case):
        if not is_defined(entry, q_len, kv_len):
            continue
        mask = case.make(q_len, kv_len, "cpu")
        for offset in offsets_of(mask, q_len, kv_len):
            placed = place(entry, mask, q_len, kv_len, offset)
            band = None if placed is None or placed.tensors() else placed.band()
            for block_size, separate in product(BLOCK_SIZES, (True, False)):
                facts = facts_of(band, q_len, kv_len, block_size, separate)
                if facts is not None and placed is not None:
                    where = f"{q_len} x {kv_len}, offset {offset}, blocks {block_size}, separate {separate}"
                    assert told(facts) == seen(placed.dense(q_len, kv_len), block_size, separate), where
                    told_of += 1
    record_property("structure facts compared", 3 * told_of)


def test_the_catalogue_has_facts() -> None:
    known = {
        entry.name: told(facts)
        for entry, case_name in CASES
        if case_name == "bench"
        and (facts := facts_of(entry.cases[case_name].make(1024, 1024, "cpu").band(), 1024, 1024, (128, 128)))
    }
    assert known["full"] == known["causal"] == (True, True, True)
    assert known["anti_causal"] == (False, True, True)  # the last query of a block keeps one key of its first block
    assert "document" not in known
    assert "dilated_window" not in known


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (masks.Causal(), (True, True, True)),
        (masks.SlidingWindow(1024), (False, False, False)),
        (masks.SlidingWindow(129), (False, True, True)),
        (masks.SlidingWindow(4096), (True, True, True)),
        (masks.WindowSymmetric(4096), (True, True, True)),
        (masks.Causal().shift(q=127), (False, True, True)),
        (masks.Causal().shift(q=128), (True, True, True)),
    ],
    ids=["causal", "window", "window of a block", "window of all", "radius of all", "offset 127", "offset 128"],
)
def test_known_facts_at_4096(mask: Mask, expected: Seen) -> None:
    facts = facts_of(mask.band(), 4096, 4096 + 128, (128, 128))
    assert facts is not None
    assert told(facts) == expected


def test_ragged_queries_interrupt_the_columns_of_causal() -> None:
    """The last row of blocks has no full one: column 0 lists rows 0 and 2 as partial, row 1 as full."""
    facts = facts_of(masks.Causal().band(), 300, 300, (128, 128))
    assert facts is not None
    assert told(facts) == (True, True, False)
    lists = masks.Causal().block_mask(300)
    assert lists.q_indices is not None
    assert lists.q_num_blocks is not None
    assert lists.q_indices[0, 0, 0, : int(lists.q_num_blocks[0, 0, 0])].tolist() == [0, 2]


@pytest.mark.parametrize(
    "mask",
    [
        masks.Document(torch.tensor([0, 5, 9])),
        masks.Causal() & masks.Document(torch.tensor([0, 5, 9])),
        masks.SlidingWindow(torch.tensor(3)),
        masks.Causal() | masks.SlidingWindow(3),
        masks.Causal().shift(q=-2),
        masks.Causal().shift(q=torch.tensor(2)),
        masks.DilatedWindow(3, 2),
        Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx),
    ],
    ids=lambda mask: mask.name,
)
def test_nothing_is_told(mask: Mask) -> None:
    assert facts_of(mask.band(), 9, 9, (4, 4)) is None


SMALL_LENGTHS = (1, 4, 5, 8, 13)
SMALL_BOUNDS = (None, -9, -1, 0, 1, 3, 4, 9, 10**30)
SMALL_BLOCKS = ((1, 1), (4, 4), (4, 2), (2, 4))
Small = tuple[int | None, int | None, int, int, tuple[int, int], bool]


@lru_cache(1)
def small_bands() -> dict[Small, Seen]:
    """What every small Band shows."""
    shown: dict[Small, Seen] = {}
    for left, right, q_len, kv_len in product(SMALL_BOUNDS, SMALL_BOUNDS, SMALL_LENGTHS, SMALL_LENGTHS):
        low, high = (None if bound is None else min(bound, 100) for bound in (left, right))  # torch has no such ints
        dense = band_matrix(Band(low, high), q_len, kv_len)
        for block_size, separate in product(SMALL_BLOCKS, (True, False)):
            shown[left, right, q_len, kv_len, block_size, separate] = seen(dense, block_size, separate)
    return shown


def wrong_facts(facts_class: Callable[..., Any]) -> Iterator[Small]:
    """Small Bands of which the class does not tell what they show."""
    return (band for band, shown in small_bands().items() if told(facts_class(*band)) != shown)


def test_facts_of_all_small_bands() -> None:
    assert list(wrong_facts(Facts)) == []
    for number in range(3):
        assert {shown[number] for shown in small_bands().values()} == {True, False}


def test_no_queries_and_no_keys() -> None:
    assert told(Facts(None, 0, 0, 8, (4, 4), True)) == (True, True, True)
    assert told(Facts(None, 0, 8, 0, (4, 4), True)) == (False, True, True)


MUTANTS = {
    "some key is enough": (" in self._keys(row.last, row.first)", " >= 0"),
    "the last query's key is enough": (
        "in self._keys(row.last, row.first)",
        "in self._keys(row.last, row.last)",
    ),
    "an empty row is safe": ("return row.read_first() *", "return not row.listed or row.read_first() *"),
    "the first block listed is read first": (
        "self.full.start == self.listed.start and self.full.stop <",
        "False and 0 <",
    ),
    "a full row has a partial block": (" and self.full.stop < self.listed.stop:", ":"),
    "full blocks interrupt nothing": ("not self.full or self.full.start ==", "True or self.full.start =="),
    "full blocks always interrupt": ("not self.full or self.full.start", "not self.full and self.full.start"),
    "full blocks may begin anywhere": ("self.full.start == self.listed.start or", "True or"),
    "full blocks must begin": ("self.listed.start or self.full.stop == self.listed.stop", "self.listed.start"),
    "a ragged row has full blocks": (" and last - first + 1 == q_block", ""),
    "full lists that are not asked for": ("whole = self.separate_full_blocks and", "whole ="),
    "full where some query keeps all": ("every = self._keys(last, first)", "every = self._keys(first, last)"),
    "full before its first key": ("full = range(-(-every.start // kv_block)", "full = range((every.start // kv_block)"),
    "full beyond its last key": ("every.stop // kv_block) if every", "-(-every.stop // kv_block)) if every"),
    "listed beyond its last key": ("-(-some.stop // kv_block)) if some", "some.stop // kv_block + 1) if some"),
    "the band ends before the query": ("end + self.right + 1", "end + self.right"),
    "the band begins after the query": ("max(0, begin - self.left)", "max(0, begin - self.left + 1)"),
    "columns are rows": ("Facts(self.right, self.left, *lengths", "Facts(self.left, self.right, *lengths"),
    "columns have the lengths of rows": ("(self.kv_len, self.q_len), (self.b", "(self.q_len, self.kv_len), (self.b"),
    "columns have the blocks of rows": ("(self.block_size[1], self.block_size[0])", "self.block_size"),
}


def mutated(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module with one change."""
    assert structure_facts.__file__ is not None
    source = Path(structure_facts.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"write this mutant anew for the code as it is: {old}"
    specification = importlib.util.spec_from_loader("mutant_of_structure_facts", loader=None)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(source.replace(old, new), module.__name__, "exec"), vars(module))
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_tell_something_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mutated(*MUTANTS[name], monkeypatch)
    assert next(wrong_facts(module.Facts), None) is not None


# The loops of torch's Triton kernels (torch/_inductor/kernel/flex/templates), one tile of keys at a time.


def tiles_read(indices: list[int], block: int, tile: int, contiguous: bool) -> list[int]:
    """Where the tiles begin that a kernel reads for one row of a list: ``get_offset_for_next_block``."""
    if not indices:
        return []
    if contiguous:
        return [indices[0] * block + step * tile for step in range(len(indices) * (block // tile))]
    return [index * block + within for index in indices for within in range(0, block, tile)]


def lists_by(block_mask: BlockMask, side: str) -> list[tuple[list[int], bool]]:
    """Partial and full lists, row after row: the blocks, and whether they are full."""
    found = []
    for prefix in ("", "full_"):
        numbers, indices = (getattr(block_mask, f"{prefix}{side}_{part}") for part in ("num_blocks", "indices"))
        if numbers is not None:
            found.append(
                [row[:count] for row, count in zip(indices[0, 0].tolist(), numbers[0, 0].tolist(), strict=True)]
            )
    return [(row, full == 1) for rows in zip(*found, strict=True) for full, row in enumerate(rows)]


def weights(dense: Tensor, block_mask: BlockMask, tile: int, safe: bool, contiguous: bool) -> Tensor:
    """The attention weights of a forward kernel where all scores are 0: ``forward_inner``, [q_len, kv_len]."""
    q_len, kv_len = dense.shape
    q_block, kv_block = block_mask.BLOCK_SIZE
    lists = lists_by(block_mask, "kv")
    out = torch.zeros(q_len, kv_len)
    kinds = 1 if block_mask.full_kv_num_blocks is None else 2
    for row, first in enumerate(range(0, q_len, q_block)):
        queries = torch.arange(first, min(first + q_block, q_len))
        highest, total = torch.full((len(queries),), -math.inf), torch.zeros(len(queries))
        summed = torch.zeros(len(queries), kv_len)
        for blocks, full in lists[kinds * row : kinds * (row + 1)]:
            for start in tiles_read(blocks, kv_block, tile, contiguous):
                keys = torch.arange(start, start + tile)
                kept = (keys < kv_len) & (dense[queries[:, None], keys % kv_len] | full)
                scores = torch.zeros(kept.shape).masked_fill(~kept, -math.inf)
                maximum = torch.maximum(highest, scores.amax(1))
                subtracted = maximum if safe else maximum.masked_fill(maximum == -math.inf, 0)
                alpha, p = (highest - subtracted).exp2(), (scores - subtracted[:, None]).exp2()
                total, highest = total * alpha + p.sum(1), maximum
                summed = (summed * alpha[:, None]).index_add(1, keys % kv_len, p)
        out[queries] = summed / torch.where(total == 0, 1, total)[:, None]
    return out


def true_weights(dense: Tensor) -> Tensor:
    return dense / dense.sum(1, keepdim=True).clamp(min=1)


LOOPED = {
    "full": masks.Full(),
    "causal": masks.Causal(),
    "anti-causal": masks.AntiCausal(),
    "window": masks.SlidingWindow(9),
    "wide window": masks.SlidingWindow(40),
    "symmetric": masks.WindowSymmetric(12),
    "offset": masks.Causal().shift(q=15),
    "offset of a block": masks.Causal().shift(q=16),
}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "together"])
@pytest.mark.parametrize("name", LOOPED)
def test_facts_are_enough_for_torchs_loops(name: str, separate: bool) -> None:
    mask = LOOPED[name]
    for q_len, kv_len, tile in product((1, 33, 64, 70), (1, 33, 64, 70), (8, 16)):
        dense = mask.dense(q_len, kv_len)
        block_mask = mask.placed_block_mask(q_len, kv_len, block_size=16, separate_full_blocks=separate)
        facts = facts_of(mask.band(), q_len, kv_len, (16, 16), separate)
        assert facts is not None
        got = weights(dense, block_mask, tile, facts.rows_are_safe, facts.rows_are_contiguous)
        torch.testing.assert_close(got, true_weights(dense))
        if facts.columns_are_contiguous:
            for blocks, _ in lists_by(block_mask, "q"):
                assert tiles_read(blocks, 16, tile, True) == tiles_read(blocks, 16, tile, False)


def test_a_key_for_every_query_is_not_enough_for_torchs_loop() -> None:
    """Each query of causal at an offset keeps a key, and the first row of blocks begins with one that query 0 lacks."""
    mask = masks.Causal().shift(q=15)
    dense, block_mask = mask.dense(32, 64), mask.placed_block_mask(32, 64, block_size=16)
    assert bool(dense.any(1).all())
    assert bool(weights(dense, block_mask, 16, safe=True, contiguous=False)[0].isnan().all())
    torch.testing.assert_close(weights(dense, block_mask, 16, safe=False, contiguous=False), true_weights(dense))


def test_a_gap_is_not_read_by_torchs_loop() -> None:
    mask = masks.SlidingWindow(40)
    dense, block_mask = mask.dense(64, 64), mask.block_mask(64, block_size=16)
    assert not torch.equal(weights(dense, block_mask, 16, safe=False, contiguous=True), true_weights(dense))
    torch.testing.assert_close(weights(dense, block_mask, 16, safe=False, contiguous=False), true_weights(dense))
