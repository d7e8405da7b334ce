"""A form that is looked up equals the one that recording gives, and uneven code is never looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import masks, registry
from attn_mods.fused import recall, recalled_forms
from attn_mods.fused.form import Unfit, form_of
from attn_mods.mask import Mask
from attn_mods.tiles.grid import Grid
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import trace

LENGTH = 300
GRID = Grid(LENGTH, LENGTH, (16, 16))
TABLE = torch.arange(LENGTH)
ENTRIES = [(name, case) for name in am.names(kind="mask") for case in registry.info(name).cases]

# Entries whose rules have a branch or a loop in some cases: over bounds that may be None, over the axes of a canvas.
NOT_ALL_STRAIGHT = {
    "dilated_window",
    "multimodal_spans",
    "neighborhood",
    "selected_blocks",
    "sliding_tile",
    "tree_verification",
    "window_asymmetric",
}


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recalled_forms, "_templates", {})
    yield


def assert_recalled_equals_recorded(make: Callable[[], Rule], grid: Grid) -> bool:
    """Whether the rule is recalled; where it is, twice, its form and values are those of recording."""
    try:
        recorded = form_of(trace(make(), grid), grid)
    except Unfit:
        assert recall(make(), grid) is None
        return False
    for _ in range(2):
        call = recall(make(), grid)
        if call is None:
            return False
        assert call.form == recorded.form
        assert call.integers == recorded.integers
        assert all(type(integer) is int for integer in call.integers)
        assert len(call.tables) == len(recorded.tables)
        assert all(torch.equal(*pair) for pair in zip(call.tables, recorded.tables, strict=True))
    return True


@pytest.mark.parametrize(("name", "case"), ENTRIES, ids=[f"{name}-{case}" for name, case in ENTRIES])
def test_entries(name: str, case: str) -> None:
    made = registry.info(name).cases[case]
    q_len, kv_len = (made.lengths or ((LENGTH, LENGTH),))[0]
    mask: Mask = made.make(q_len, kv_len, "cpu")
    batch, heads = mask.batch_and_heads()
    grid = Grid(q_len, kv_len, (16, 16), batch, heads)
    for placed in (mask, mask & masks.SlidingWindow(window=50), ~mask):
        recalled = assert_recalled_equals_recorded(placed.mask_mod, grid)
        assert recalled or name in NOT_ALL_STRAIGHT


@pytest.mark.parametrize("offset", [0, 7, 150])
def test_moved_masks(offset: int) -> None:
    for mask in (masks.Causal(), masks.SlidingWindow(window=3) | masks.PrefixLm(prefix=5)):
        assert assert_recalled_equals_recorded(mask.shift(q=offset).mask_mod, GRID)


def test_values_change_and_signs_are_told_apart() -> None:
    def rule(window: int, table: Tensor) -> Rule:
        def inner(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (q_idx - kv_idx < window) & (table[q_idx] == table[kv_idx])

        return inner

    calls = [recall(rule(window, TABLE + window), GRID) for window in (5, 9, -5)]
    assert all(call is not None for call in calls)
    first, second, negative = (call for call in calls if call is not None)
    assert first.form == second.form
    assert first.form != negative.form
    assert [(5 in call.integers, 9 in call.integers) for call in (first, second)] == [
        (True, False),
        (False, True),
    ]
    assert torch.equal(second.tables[0], TABLE + 9)


@pytest.mark.parametrize(
    ("dtype", "first", "second"), [(torch.int8, 5, 300), (torch.uint8, 5, 300), (torch.int16, 44, 65580)]
)
def test_numbers_beyond_a_narrow_table(dtype: torch.dtype, first: int, second: int) -> None:
    """torch wraps such a number, and a small one not, so one form does not serve both."""

    def rule(number: int) -> Rule:
        table = TABLE.to(dtype)
        return lambda b, h, q_idx, kv_idx: table[q_idx] == number

    assert recall(rule(first), GRID) is None
    assert recall(rule(second), GRID) is None
    assert form_of(trace(rule(first), GRID), GRID)
    with pytest.raises(Unfit):
        form_of(trace(rule(second), GRID), GRID)


def test_a_rule_that_holds_itself() -> None:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) if rule else (q_idx < kv_idx)

    def straight(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        myself = straight  # noqa: F841
        return q_idx >= kv_idx

    assert recall(rule, GRID) is None
    assert recall(straight, GRID) is None


def test_one_tensor_in_two_places_then_two() -> None:
    def rule(q_table: Tensor, kv_table: Tensor) -> Rule:
        return lambda b, h, q_idx, kv_idx: q_table[q_idx] == kv_table[kv_idx]

    assert recall(rule(TABLE, TABLE), GRID) is not None
    call = recall(rule(TABLE, TABLE + 1), GRID)
    assert call is not None
    assert torch.equal(call.tables[0], TABLE)
    assert torch.equal(call.tables[1], TABLE + 1)


def test_tables_that_became_too_short() -> None:
    def rule(table: Tensor) -> Rule:
        return lambda b, h, q_idx, kv_idx: table[q_idx] == table[kv_idx]

    assert recall(rule(TABLE), GRID) is not None
    assert recall(rule(TABLE[:-1].clone()), GRID) is None
    assert recall(rule(TABLE.repeat_interleave(2)[::2]), GRID) is None


def test_lengths_and_tables_without_a_kernel_do_not_speak_for_others() -> None:
    def rule(table: Tensor) -> Rule:
        return lambda b, h, q_idx, kv_idx: table[q_idx] == table[kv_idx]

    assert recall(rule(TABLE[:-1].clone()), GRID) is None
    assert recall(rule(TABLE[:0].clone()), GRID) is None
    assert recall(rule(TABLE), Grid(LENGTH, LENGTH, (16, 16), q_offset=1 << 30)) is None
    assert recall(rule(TABLE), GRID) is not None


WINDOW = 5

UNEVEN: dict[str, Any] = {
    "arithmetic": lambda b, h, q, k: q - k < WINDOW * 2,
    "negation": lambda b, h, q, k: q - k < -WINDOW,
    "branch": lambda b, h, q, k: q - k < (WINDOW if WINDOW > 3 else 2),
    "shape": lambda b, h, q, k: TABLE[q] - k < TABLE.shape[0],
    "built-in function": lambda b, h, q, k: q - k < max(WINDOW, 3),
    "constant tensor": lambda b, h, q, k: q - k < q.new_full((), WINDOW),
    "entry at a number": lambda b, h, q, k: q - k < TABLE[WINDOW],
    "method of a number": lambda b, h, q, k: q - k < WINDOW.bit_length(),
    "comparison of numbers": lambda b, h, q, k: (q >= k) & torch.tensor(WINDOW > 3),
    "loop": lambda b, h, q, k: torch.stack([q >= k + n for n in range(WINDOW)]).all(),
    "attribute": lambda b, h, q, k: q - k < masks.SlidingWindow(WINDOW).window,
    "literal operand": lambda b, h, q, k: (q - k) >> WINDOW > 0,
    "computed table": lambda b, h, q, k: (TABLE + 1)[q] > k,
}


@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_code_is_recorded_each_time(name: str) -> None:
    assert recall(UNEVEN[name], GRID) is None


def test_numbers_that_only_meet_indices() -> None:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        clamped = q_idx.clamp(max=WINDOW) >= torch.where(q_idx > kv_idx, WINDOW, kv_idx)
        return (WINDOW - q_idx < kv_idx) & (kv_idx < WINDOW) & clamped

    assert assert_recalled_equals_recorded(lambda: rule, GRID)


@pytest.mark.usefixtures("interpreter")
def test_a_rule_that_is_warned_of_is_warned_of_every_time() -> None:
    def meant_otherwise(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & b % 2 == 0

    for _ in range(2):
        with pytest.warns(UserWarning, match="meant_otherwise: `&` joins a boolean and an integer"):
            am.create_block_mask(meant_otherwise, 2, None, 40, 40, "cpu", 16)
