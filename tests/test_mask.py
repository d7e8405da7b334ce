"""The algebra and the frames of masks."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from attn_mods import Mask, masks
from attn_mods.entry import Entry
from attn_mods.entry_checks import dense_of, rule_matrix
from tests.block_mask_equality import assert_same_block_mask
from tests.refusals import assert_refused

COMPOSITIONS = 400
CU_SEQLENS = torch.tensor([0, 3, 3, 8, 20])


def rows(mask: Mask, q_len: int, kv_len: int) -> list[list[int]]:
    """The visible keys of each query, from the rule."""
    ruled = rule_matrix(mask, q_len, kv_len, torch.device("cpu"))[0, 0]
    return [row.nonzero().flatten().tolist() for row in ruled]


def assert_consistent(mask: Mask, q_len: int, kv_len: int, block_size: tuple[int, int] = (16, 16)) -> None:
    """Rule, dense form and torch's lists agree for a placed mask."""
    ruled = rule_matrix(mask, q_len, kv_len, torch.device("cpu"))
    assert torch.equal(ruled, dense_of(mask, q_len, kv_len)), f"{mask.name}: rule and dense form differ"
    got = mask.placed_block_mask(q_len, kv_len, block_size=block_size)
    batch, heads = mask.batch_and_heads()
    expected = create_block_mask(mask.mask_mod(), batch, heads, q_len, kv_len, "cpu", BLOCK_SIZE=block_size)
    expected.mask_mod = got.mask_mod
    assert_same_block_mask(got, expected)


@pytest.mark.parametrize(
    ("name", "combined", "expected"),
    [
        ("and", masks.Causal() & masks.SlidingWindow(2), lambda a, b: a & b),
        ("or", masks.Causal() | masks.SlidingWindow(2), lambda a, b: a | b),
        ("minus", masks.Causal() - masks.SlidingWindow(2), lambda a, b: a & ~b),
        ("not", ~masks.Causal() & masks.SlidingWindow(2), lambda a, b: ~a & b),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_truth_table(name: str, combined: Mask, expected: object) -> None:
    a, b = masks.Causal().dense(40, 40), masks.SlidingWindow(2).dense(40, 40)
    assert callable(expected)
    assert torch.equal(combined.dense(40, 40), expected(a, b))
    assert_consistent(combined, 40, 40)


def test_python_operators_are_refused() -> None:
    with pytest.raises(TypeError, match=r"causal: a mask has no truth value.*combine masks with & "):
        masks.Causal() and masks.SlidingWindow(2)
    with pytest.raises(TypeError, match="unsupported operand"):
        masks.Causal() & torch.ones(3, 3, dtype=torch.bool)  # type: ignore[operator]


def test_shift_is_absolute_positions() -> None:
    assert rows(masks.SlidingWindow(4).shift(q=8), 2, 10) == [[5, 6, 7, 8], [6, 7, 8, 9]]
    assert rows(masks.Causal().shift(q=5, kv=3), 3, 4) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("offset", [8, torch.tensor(8), torch.tensor([8])], ids=["int", "0-d", "one element"])
def test_c48_q_offset_forms_give_one_mask(offset: int | Tensor) -> None:
    got = masks.SlidingWindow(4).block_mask(2, 10, q_offset=offset, block_size=16)
    expected = masks.SlidingWindow(4).block_mask(2, 10, q_offset=8, block_size=16)
    assert got.shape == expected.shape == (1, 1, 2, 10)
    expected.mask_mod = got.mask_mod
    assert_same_block_mask(got, expected)


@pytest.mark.parametrize("shift", [(-3, 0), (0, -3), (-2, -5), (3, -1)], ids=str)
@pytest.mark.parametrize("mask", [masks.Causal(), ~masks.Causal(), masks.Document.from_lengths([4, 16])], ids=str)
def test_negative_positions_keep_nothing(mask: Mask, shift: tuple[int, int]) -> None:
    moved = mask.shift(q=shift[0], kv=shift[1])
    dense = dense_of(moved, 10, 10)[0, 0]
    assert not dense[: max(0, -shift[0])].any()
    assert not dense[:, : max(0, -shift[1])].any()
    assert_consistent(moved, 10, 10)


def test_shift_twice_adds_up() -> None:
    twice, once = masks.Causal().shift(q=3).shift(q=4), masks.Causal().shift(q=7)
    assert torch.equal(twice.dense(5, 20), once.dense(5, 20))


def test_per_document_restarts_positions() -> None:
    first_two = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < 2, frame="keys", name="first_two")
    seen = rows(first_two.per_document(CU_SEQLENS), 20, 20)
    assert seen == [[0, 1]] * 3 + [[3, 4]] * 5 + [[8, 9]] * 12


def test_per_document_equals_document_and_where_positions_do_not_matter() -> None:
    inside = masks.SlidingWindow(3).per_document(CU_SEQLENS)
    combined = masks.SlidingWindow(3) & masks.Document(CU_SEQLENS)
    assert torch.equal(inside.dense(20, 20)[0, 0], combined.dense(20, 20))
    assert_consistent(inside, 20, 20)


def test_an_outer_shift_applies_to_packed_positions() -> None:
    packed = masks.Causal().per_document(CU_SEQLENS)
    assert torch.equal(packed.shift(q=5).dense(15, 20), packed.dense(20, 20)[..., 5:, :])
    assert_consistent(packed.shift(q=5), 15, 20)


def test_per_document_with_boundaries_of_the_keys() -> None:
    mask = masks.Full().per_document(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 6]))
    assert rows(mask, 4, 6) == [[0], [0], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert mask.frame == "cross"
    assert mask.block_mask(4, 6, block_size=16).shape == (1, 1, 4, 6)


def test_frames_of_compositions() -> None:
    keys, own = masks.Full(), masks.Causal()
    cross = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx == kv_idx, frame="cross", name="cross")
    assert (keys & keys).frame == "keys"
    assert (keys | cross).frame == (~cross).frame == "cross"
    assert (cross & own).frame == own.shift(q=2).frame == "self"


def test_lengths_that_differ_need_an_offset() -> None:
    with pytest.raises(ValueError, match=r"causal: q_len != kv_len needs q_offset.*q_len=2, kv_len=10.*q_offset=8"):
        masks.Causal().block_mask(2, 10)
    assert masks.Causal().block_mask(2, 10, q_offset=0).shape[-2:] == (2, 10)
    assert masks.Full().block_mask(2, 10).shape[-2:] == (2, 10)


@pytest.mark.parametrize("length", ["8", True, None, 8.0, -1], ids=str)
def test_lengths_are_whole_numbers_of_tokens(length: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"causal: q_len must be .*; pass numbers of tokens"):
        masks.Causal().block_mask(length)  # type: ignore[arg-type]


def test_list_sizes_come_from_the_parameters() -> None:
    per_head = masks.SlidingWindow(torch.tensor([2, 9, 30]))
    assert per_head.block_mask(40).shape == (1, 3, 40, 40)
    assert masks.Causal().block_mask(40, B=2, H=3).shape == (2, 3, 40, 40)
    with pytest.raises(ValueError, match="sliding_window: H must be 3, the size of its parameters, got 2"):
        per_head.block_mask(40, H=2)
    with pytest.raises(ValueError, match="the H of its parts must be 1 or equal, got 3 and 2"):
        (per_head & masks.SlidingWindow(torch.tensor([1, 2]))).block_mask(40)


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        (torch.tensor([0, 5, 3, 10]), "cu_seqlens must never fall, got 5 followed by 3"),
        (torch.tensor([1, 5, 10]), "cu_seqlens must start at 0, got 1"),
        (torch.tensor([0.0, 10.0]), "cu_seqlens must be an integer tensor"),
        (torch.tensor([[0, 10]]), "cu_seqlens must have 1 dimensions"),
        ([0, 10], "cu_seqlens must be an integer tensor"),
    ],
    ids=["falls", "start", "float", "two dimensions", "list"],
)
def test_bad_boundaries(boundaries: Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        masks.Document(boundaries)
    with pytest.raises((ValueError, TypeError), match=message):
        masks.Causal().per_document(boundaries)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([-1, 5], "lengths must be >= 0, got a smallest value of -1; pass the number of tokens of each document"),
        ([], "lengths must not be empty"),
        ([1.5, 2.0], "lengths must be an integer tensor"),
        ([[1, 2]], "lengths must have 1 dimensions"),
    ],
    ids=["negative", "none", "float", "two dimensions"],
)
def test_bad_document_lengths_are_called_lengths(lengths: list[int], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"document: {message}"):
        masks.Document.from_lengths(lengths)
    with pytest.raises((ValueError, TypeError), match=f"shared_prefix: {message}"):
        masks.SharedPrefix.from_lengths(lengths, [-1, -1])


def meta(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


FLAGS = meta(8, 8, dtype=torch.bool)
WITHOUT_VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "window": (lambda: masks.SlidingWindow(meta()), "sliding_window: window"),
    "window of each head": (lambda: masks.SlidingWindow(meta(4)), "sliding_window: window"),
    "boundaries": (lambda: masks.Document(meta(4)), "document: cu_seqlens"),
    "boundaries of a composition": (lambda: masks.document_causal(meta(4)), "document: cu_seqlens"),
    "ids": (lambda: masks.Document.from_ids(meta(8)), "document: ids"),
    "lengths": (lambda: masks.Document.from_lengths(meta(2)), "document: lengths"),
    "table": (lambda: masks.SelectedBlocks(FLAGS[None, None], 4, 4), "selected_blocks: table"),
    "indices": (lambda: masks.SelectedBlocks.from_indices(meta(1, 1, 2, 2), 4, 4, 8), "selected_blocks: indices"),
    "flags": (lambda: masks.GlobalPlusWindow(1, FLAGS[0]), "global_plus_window: is_global"),
    "spans": (lambda: masks.MultimodalSpans(meta(8)), "multimodal_spans: span"),
    "groups": (lambda: masks.CumsumAr(meta(8)), "cumsum_ar: mask_ar"),
    "groups of bools": (lambda: masks.CumsumAr(FLAGS[0]), "cumsum_ar: mask_ar"),
    "valid": (lambda: masks.CumsumAr(torch.zeros(8).long(), FLAGS[0]), "cumsum_ar: valid"),
    "ancestors": (lambda: masks.TreeVerification(FLAGS, 2), "tree_verification: ancestors"),
    "parents": (lambda: masks.TreeVerification.from_parents(meta(4), 2), "tree_verification: parents"),
    "prefixes": (lambda: masks.SharedPrefix(torch.tensor([0, 8]), meta(1)), "shared_prefix: prefix_document"),
    "per_document": (lambda: masks.Causal().per_document(meta(3)), "per_document: cu_seqlens"),
    "shift": (lambda: masks.Causal().shift(q=meta()), "causal: q"),
    "moved": (lambda: masks.SlidingWindow(torch.tensor(3)).to("meta"), "sliding_window: window"),
}


@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_parameters_must_hold_values(name: str) -> None:
    make, field = WITHOUT_VALUES[name]
    message = f"^{field} must hold values, got a tensor of .* on the meta device; pass a dense tensor"
    assert_refused(make, ValueError, message)


def test_parameters_must_be_dense() -> None:
    message = (
        "^sliding_window: window must hold values, got a tensor of dtype torch.int64 that is torch.sparse_coo; pass"
    )
    assert_refused(lambda: masks.SlidingWindow(torch.ones(4, dtype=torch.int64).to_sparse()), ValueError, message)


def test_a_users_rule_on_a_table_without_values() -> None:
    table = meta(8)
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: table[q_idx] >= kv_idx, name="users")
    message = "^users: device must be one that holds values, got 'meta'; pass a device of this machine"
    for use in (lambda: mask.block_mask(8), lambda: mask.dense(8, 8), lambda: (mask & masks.Causal()).block_mask(8)):
        with pytest.raises(ValueError, match=message.replace("users", ".*users.*")):
            use()


BAD_TABLES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no prefixes": (
        lambda: masks.SharedPrefix.from_lengths([3, 5], None),  # type: ignore[arg-type]
        TypeError,
        "^shared_prefix: prefix_document must be a sequence of ints or an integer tensor, got None; pass one document",
    ),
    "text of prefixes": (
        lambda: masks.SharedPrefix.from_lengths([3, 5], "ab"),  # type: ignore[arg-type]
        TypeError,
        "^shared_prefix: prefix_document must be a sequence of ints .*, got 'ab'",
    ),
    "no parents": (
        lambda: masks.TreeVerification.from_parents(None, 2),  # type: ignore[arg-type]
        TypeError,
        "^tree_verification: parents must be a sequence of ints or an integer tensor, got None; sort the nodes",
    ),
    "text of parents": (
        lambda: masks.TreeVerification.from_parents("ab", 2),  # type: ignore[arg-type]
        TypeError,
        "^tree_verification: parents must be a sequence of ints .*, got 'ab'",
    ),
    "no node": (
        lambda: masks.TreeVerification.from_parents([], 2),
        ValueError,
        r"^tree_verification: parents must not be empty, got \[\]",
    ),
    "no tree": (
        lambda: masks.TreeVerification.from_parents(torch.zeros(0, 3, dtype=torch.int64), 2),
        ValueError,
        r"^tree_verification: parents must not be empty, got a tensor of shape \(0, 3\)",
    ),
    "empty tree": (
        lambda: masks.TreeVerification(torch.zeros(0, 0, dtype=torch.bool), 2),
        ValueError,
        r"^tree_verification: ancestors must hold at least one node, got \(0, 0\)",
    ),
    "empty table": (
        lambda: masks.SelectedBlocks(torch.zeros(0, 1, 2, 2, dtype=torch.bool), 4, 4),
        ValueError,
        r"^selected_blocks: table must not be empty, got \(0, 1, 2, 2\)",
    ),
    "text of a block": (
        lambda: masks.SelectedBlocks.from_indices(torch.zeros(1, 1, 2, 2, dtype=torch.int64), "4", 4, 8),  # type: ignore[arg-type]
        TypeError,
        "^selected_blocks: q_block must be an int",
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(name: str) -> None:
    assert_refused(*BAD_TABLES[name])


def test_a_prefix_that_is_no_document_number_is_not_rounded() -> None:
    with pytest.raises(TypeError, match="prefix_document must be an integer tensor"):
        masks.SharedPrefix.from_lengths([3, 5], [-1, 0.5])  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [True, 2.0, "2", np.True_, np.float64(2)], ids=repr)
def test_what_is_no_integer_is_refused(wrong: Any) -> None:
    ids = torch.zeros(8, dtype=torch.int64)
    for make in (
        lambda: masks.SlidingWindow(wrong),
        lambda: masks.Area(tokens=8, area=wrong),
        lambda: masks.Neighborhood((4, wrong), (2, 2)),
        lambda: masks.Document.from_ids(ids, padding=wrong),
        lambda: masks.Causal().shift(q=wrong),
    ):
        with pytest.raises(TypeError, match="must be an int"):
            make()


def test_integers_of_numpy_become_ints() -> None:
    window = masks.SlidingWindow(np.int64(4))
    assert type(window.window) is int
    assert window.key() == masks.SlidingWindow(4).key()
    assert window.structure() == masks.SlidingWindow(4).structure()
    assert window.integers() == [4]
    assert type(masks.Area(tokens=np.int32(8), area=2).tokens) is int
    canvas = masks.Neighborhood((np.int64(4), 4), (2, 2)).canvas
    assert [type(size) for size in canvas] == [int, int]
    moved = masks.Causal().shift(q=np.int16(3))
    assert moved.key() == masks.Causal().shift(q=3).key()
    assert torch.equal(window.dense(9, 9), masks.SlidingWindow(4).dense(9, 9))
    with pytest.raises(ValueError, match="window must be >= 1, got 0"):
        masks.SlidingWindow(np.int64(0))


def test_boundaries_that_do_not_end_at_the_length() -> None:
    with pytest.raises(ValueError, match="document: cu_seqlens must end at the number of keys, 12, got 10"):
        masks.Document(torch.tensor([0, 10])).block_mask(12)
    with pytest.raises(ValueError, match=r"causal.per_document: cu_seqlens must end at the number of keys, 12"):
        masks.Causal().per_document(torch.tensor([0, 10])).block_mask(12)
    with pytest.raises(ValueError, match="the queries must end at or before position 10"):
        masks.Document(torch.tensor([0, 10])).block_mask(5, 10, q_offset=6)


def test_key_follows_values_and_state() -> None:
    window = torch.tensor(4)
    mask = masks.SlidingWindow(window) & masks.Causal()
    key = mask.key()
    assert mask.key() == key == (masks.SlidingWindow(window) & masks.Causal()).key()
    assert masks.SlidingWindow(4).key() != masks.SlidingWindow(5).key()
    window.add_(1)
    assert mask.key() != key


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))], ids=["deep", "pickle"]
)
def test_c62_copies_are_equal(copied: object) -> None:
    mask = (masks.SlidingWindow(torch.tensor(4)) | masks.Full()).shift(q=2) - masks.Causal().per_document(CU_SEQLENS)
    assert callable(copied)
    again = copied(mask)
    assert again.structure() == mask.structure()
    assert torch.equal(dense_of(again, 18, 20), dense_of(mask, 18, 20))


def random_mask(rng: random.Random, length: int, depth: int) -> Mask:
    """A random expression over cases of the catalogue that allow any length."""
    if depth == 0:
        entries = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]
        entry = rng.choice([entry for entry in entries if not all(case.lengths for case in entry.cases.values())])
        case = rng.choice([case for case in entry.cases.values() if case.lengths is None])
        made = case.make(length, length, "cpu")
        assert isinstance(made, Mask)
        return made
    kind = rng.choice(["and", "or", "not", "minus", "shift", "document", "and", "or"])
    first = random_mask(rng, length, depth - 1)
    if kind == "not":
        return ~first
    if kind == "shift":
        return first.shift(q=-rng.randint(0, length), kv=-rng.randint(0, 3))
    if kind == "document":
        cuts = sorted(rng.randint(0, length) for _ in range(rng.randint(0, 4)))
        boundaries = torch.tensor([0, *cuts, length])
        return rng.choice([masks.Causal(), masks.SlidingWindow(3)]).per_document(boundaries) | first
    second = random_mask(rng, length, depth - 1)
    return {"and": first.__and__, "or": first.__or__, "minus": first.__sub__}[kind](second)


@pytest.mark.parametrize("chunk", range(8))
def test_random_compositions(chunk: int) -> None:
    executed = 0
    for seed in range(chunk, COMPOSITIONS, 8):
        rng = random.Random(seed)
        length = rng.choice([1, 7, 40, 97])
        mask = random_mask(rng, length, rng.randint(1, 3))
        try:
            mask.batch_and_heads()
        except ValueError as error:
            assert "must be 1 or equal" in str(error)
            mask = masks.Causal() | ~random_mask(rng, length, 0)
        assert_consistent(mask, length, length, rng.choice([(16, 16), (16, 32), (64, 32)]))
        executed += 1
    assert executed == COMPOSITIONS // 8
