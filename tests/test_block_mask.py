"""create_block_mask and build_block_mask: torch's signature, its lists, its refusals."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

from attn_mods import masks
from attn_mods.block_mask import build_block_mask, create_block_mask, list_bytes, listed_blocks
from attn_mods.tiles import EMPTY, FULL, MIXED, UNKNOWN, Grid, States, tile_states
from attn_mods.tiles.rule import RuleError
from tests.block_mask_equality import assert_same_block_mask, assert_sound, dense_truth

IDS = torch.tensor([0] * 5 + [1] * 40 + [2] * 55 + [3] * 28 + [4] * 172)
LENGTHS = torch.tensor([100, 7])
WINDOWS = torch.tensor([3, 130])
SPANS = torch.tensor([[0, 50], [60, 61], [100, 290]])
DENSE = torch.rand(300, 300, generator=torch.Generator().manual_seed(0)) < 0.97
HAS_DQ_ORDER = "dq_write_order" in inspect.signature(BlockMask.__init__).parameters

Rule = Callable[..., Tensor]
RULES: dict[str, Rule] = {
    "everything": lambda b, h, q, k: b.new_ones((), dtype=torch.bool),
    "nothing": lambda b, h, q, k: q < 0,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 40),
    "document causal": lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k),
    "chunked": lambda b, h, q, k: (q // 48 == k // 48) & (q >= k),
    "padding": lambda b, h, q, k: k < LENGTHS[b],
    "window per head": lambda b, h, q, k: (q - k).abs() < WINDOWS[h],
    "padding and heads": lambda b, h, q, k: (k < LENGTHS[b]) | (q - k > WINDOWS[h]),
    "dilated": lambda b, h, q, k: ((q - k).abs() <= 64) & ((q - k) % 3 == 0),
    "spans": lambda b, h, q, k: ((SPANS[:, 0] <= q) & (q < SPANS[:, 1]) & (SPANS[:, 0] <= k) & (k < SPANS[:, 1])).any(),
    "dense table": lambda b, h, q, k: DENSE[q, k],
    "powers of two": lambda b, h, q, k: ((q >> 4) & 3) == ((k >> 4) & 3),
    "truncated": lambda b, h, q, k: torch.div(q - k, 7, rounding_mode="trunc") == torch.fmod(q - k, 5),
    "scanned": lambda b, h, q, k: ((q * k) ^ (q + k)) % 7 == 2,
}
SHAPES = list(itertools.product((1, 97, 128, 300), (1, 45, 129, 300)))
BLOCKS = (16, 128, (64, 32))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("block_size", BLOCKS, ids=str)
def test_lists_and_states_are_torchs(name: str, block_size: int | tuple[int, int]) -> None:
    rule = RULES[name]
    for q_len, kv_len in SHAPES:
        got = create_block_mask(rule, 2, 2, q_len, kv_len, "cpu", BLOCK_SIZE=block_size)
        expected = torch_create_block_mask(rule, 2, 2, q_len, kv_len, "cpu", BLOCK_SIZE=block_size)
        assert_same_block_mask(got, expected)
        for indices in ("kv_indices", "full_kv_indices", "q_indices", "full_q_indices"):
            assert torch.equal(getattr(got, indices), getattr(expected, indices)), (name, q_len, kv_len, indices)
        grid = Grid(q_len, kv_len, got.BLOCK_SIZE, B=2, H=2)
        assert_sound(tile_states(rule, grid), dense_truth(rule, 2, 2, q_len, kv_len), grid)


@pytest.mark.parametrize("separate_full_blocks", [True, False])
@pytest.mark.parametrize("dq_kv_order", [True, False])
@pytest.mark.parametrize("name", ["causal", "window per head", "document causal"])
@pytest.mark.skipif(not HAS_DQ_ORDER, reason="this torch has no dQ write order")
def test_options(name: str, separate_full_blocks: bool, dq_kv_order: bool) -> None:
    options: dict[str, Any] = {
        "separate_full_blocks": separate_full_blocks,
        "compute_dq_write_order": True,
        "dq_kv_order": dq_kv_order,
    }
    for q_len, kv_len in ((300, 300), (97, 300)):
        got = create_block_mask(RULES[name], None, 2, q_len, kv_len, "cpu", 32, **options)
        assert_same_block_mask(got, torch_create_block_mask(RULES[name], None, 2, q_len, kv_len, "cpu", 32, **options))


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 40), (40, 0), (0, 0)])
def test_no_positions(q_len: int, kv_len: int) -> None:
    got = create_block_mask(RULES["causal"], 1, 1, q_len, kv_len, "cpu", BLOCK_SIZE=16)
    assert got.kv_indices.shape == (1, 1, -(-q_len // 16), -(-kv_len // 16))
    assert got.kv_num_blocks.sum() == got.full_kv_num_blocks.sum() == 0


@pytest.mark.skipif(not HAS_DQ_ORDER, reason="the signature is that of torch 2.13")
def test_signature_is_torchs() -> None:
    ours = inspect.signature(create_block_mask).parameters
    theirs = inspect.signature(torch_create_block_mask).parameters
    assert [(name, p.default) for name, p in ours.items()] == [(name, p.default) for name, p in theirs.items()]


def test_compile_flag_warns() -> None:
    with pytest.warns(DeprecationWarning, match="_compile"):
        create_block_mask(RULES["causal"], 1, 1, 32, 32, "cpu", 16, _compile=True)


def test_bad_order() -> None:
    with pytest.raises(ValueError, match=r"dq_kv_order must be a bool, got a tensor.*; pass True for descending"):
        create_block_mask(RULES["causal"], 1, 1, 32, 32, "cpu", 16, dq_kv_order=torch.arange(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block_size", "error"),
    [((1, 2, 3), ValueError), ((16,), ValueError), (0, ValueError), ((16, -1), ValueError), (16.0, TypeError),
     ((16, "16"), TypeError), (True, TypeError), (None, TypeError)],
    ids=str,
)  # fmt: skip
def test_bad_block_size(block_size: Any, error: type[Exception]) -> None:
    for name, make in {
        "create_block_mask": lambda: create_block_mask(RULES["causal"], 1, 1, 32, 32, "cpu", block_size),
        "causal": lambda: masks.Causal().block_mask(32, block_size=block_size),
        "Grid": lambda: Grid(32, 32, block_size),
    }.items():
        with pytest.raises(error, match=rf"{name}: block_size must be .*; pass the positions per block, or a pair"):
            make()


def test_listed_blocks_read_no_further_than_the_count() -> None:
    counts = torch.tensor([2, 0, 3], dtype=torch.int32)
    indices = torch.tensor([[2, 0, 2], [1, 1, 1], [2, 1, 0]], dtype=torch.int32)
    expected = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    assert torch.equal(listed_blocks(counts[None, None], indices[None, None])[0, 0], expected)


def test_memory_of_lists_counts_what_they_share_once() -> None:
    one = create_block_mask(RULES["causal"], 1, 1, 256, 256, "cpu", 16)
    many = create_block_mask(RULES["causal"], 4, 8, 256, 256, "cpu", 16)
    assert list_bytes(many) == list_bytes(one) == 4 * (16 * 16 + 16) * 4


def test_lists_the_rule_does_not_vary_share_storage() -> None:
    got = create_block_mask(RULES["causal"], 4, 8, 256, 256, "cpu", 16)
    assert got.kv_indices.shape == (4, 8, 16, 16)
    assert got.kv_indices.stride()[:2] == (0, 0)


@pytest.mark.parametrize("name", ["causal", "document causal", "padding and heads"])
def test_given_states_are_believed_and_unknown_ones_settled(name: str) -> None:
    grid = Grid(300, 300, (32, 32), B=2, H=2)
    expected = torch_create_block_mask(RULES[name], 2, 2, 300, 300, "cpu", BLOCK_SIZE=32)
    nothing = States(torch.full((2, 2, grid.rows, grid.columns), UNKNOWN, dtype=torch.uint8))
    for states in (None, lambda: nothing, lambda: tile_states(RULES[name], grid)):
        assert_same_block_mask(build_block_mask(RULES[name], grid, states=states), expected)
    claims = States(torch.full((1, 1, grid.rows, grid.columns), EMPTY, dtype=torch.uint8))
    assert build_block_mask(RULES[name], grid, states=lambda: claims).kv_num_blocks.sum() == 0


def test_states_of_another_grid() -> None:
    states = States(torch.zeros(1, 1, 3, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"shape \(1, 1, 3, 4\), the grid needs"):
        build_block_mask(RULES["causal"], Grid(64, 64, (16, 16)), states=lambda: states)


@pytest.mark.parametrize("name", ["causal", "window", "chunked", "scanned"])
@pytest.mark.parametrize(("q_offset", "kv_offset"), [(100, 0), (0, 37), (-20, -3), (1 << 33, 1 << 33)])
def test_offsets_are_absolute_positions(name: str, q_offset: int, kv_offset: int) -> None:
    rule = RULES[name]
    grid = Grid(97, 130, (32, 16), q_offset=q_offset, kv_offset=kv_offset)
    got = build_block_mask(rule, grid)
    expected = torch_create_block_mask(
        lambda b, h, q, k: rule(b, h, q + q_offset, k + kv_offset), 1, 1, 97, 130, "cpu", BLOCK_SIZE=(32, 16)
    )
    expected.mask_mod = rule
    assert_same_block_mask(got, expected)


def test_ragged_tile_is_full_as_a_claim_and_partial_in_the_lists() -> None:
    grid = Grid(20, 20, (16, 16))
    assert tile_states(RULES["everything"], grid).codes.unique().tolist() == [FULL]
    got = build_block_mask(RULES["everything"], grid)
    assert got.full_kv_num_blocks.flatten().tolist() == [1, 0]
    assert got.kv_num_blocks.flatten().tolist() == [1, 2]


def test_a_score_mod_is_refused() -> None:
    with pytest.raises(RuleError, match="score_mod"):
        create_block_mask(lambda score, b, h, q, k: score, 1, 1, 32, 32, "cpu")


def test_length_beyond_any_position_by_position_scan() -> None:
    length = 1 << 17
    starts = (torch.arange(length) // 3000) * 3000
    grid = Grid(length, length, B=1, H=1)
    states = tile_states(lambda b, h, q, k: (starts[q] <= k) & (k <= q), grid)
    kept_rows = (states.codes == FULL).sum(-1).flatten()
    expected = (torch.arange(grid.rows) * 128 - (starts[127::128] + 127) // 128 * 128).clamp(min=0) // 128
    assert torch.equal(kept_rows, expected)
    assert int((states.codes == UNKNOWN).sum()) < grid.rows
    assert int((states.codes == MIXED).sum()) < 3 * grid.rows
