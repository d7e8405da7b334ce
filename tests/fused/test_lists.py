"""Whole BlockMasks by kernels: the lists that the calculus gives, and what is stored of them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

from attn_mods import block_mask
from attn_mods.block_mask import build_block_mask, lists_of
from attn_mods.fused import kernels
from attn_mods.tiles import Grid
from attn_mods.tiles.rule import Rule
from tests.fused.comparison import assert_same_lists, lists_by_calculus

pytestmark = pytest.mark.usefixtures("interpreter")

IDS = torch.arange(200) // 17
WINDOWS = torch.tensor([3, 30])
PREFIX = torch.tensor([20, 1, 40])

RULES: dict[str, tuple[Rule, Grid]] = {
    "causal": (lambda b, h, q, k: q >= k, Grid(40, 40, (16, 16))),
    "packed": (lambda b, h, q, k: (IDS[q] == IDS[k]) & (q - k < 12) & (q >= k), Grid(40, 24, (16, 8), q_offset=10)),
    "window per head": (lambda b, h, q, k: (q - k).abs() < WINDOWS[h], Grid(20, 20, (16, 16), B=2, H=2)),
    "prefix per batch": (lambda b, h, q, k: (q >= k) | (k < PREFIX[b]), Grid(20, 17, (16, 16), B=3, H=2)),
    "nothing kept": (lambda b, h, q, k: q + k < 0, Grid(20, 20, (16, 16), B=2)),
    "all kept": (lambda b, h, q, k: q + k >= 0, Grid(32, 32, (16, 16))),
    "all unknown": (lambda b, h, q, k: (q * k) % 13 == 5, Grid(20, 20, (16, 16))),
}
# Whether full tiles have lists of their own, and whether lists are compact.
OPTIONS = {
    "causal": [(False, False), (False, True)],
    "packed": [(True, False), (True, True)],
    "window per head": [(True, True)],
    "prefix per batch": [(True, False)],
    "nothing kept": [(True, True)],
    "all kept": [(True, False)],
    "all unknown": [(True, False)],
}


@pytest.fixture(autouse=True)
def _nothing_is_left_to_the_calculus() -> Iterator[mock.Mock]:
    """Counts what the calculus does, so that a test can say that kernels did it all."""
    with mock.patch.object(block_mask, "analyse", wraps=block_mask.analyse) as analyse:
        yield analyse


@pytest.mark.parametrize(
    ("name", "options"), [(name, each) for name, options in OPTIONS.items() for each in options], ids=str
)
def test_lists_by_kernels(name: str, options: tuple[bool, bool], _nothing_is_left_to_the_calculus: mock.Mock) -> None:
    rule, grid = RULES[name]
    separate, compact = options
    expected = lists_by_calculus(rule, grid, separate)
    for _ in range(2):  # planes and lists have kernels of their own, the second asked for once there is the first
        build_block_mask(rule, grid, separate_full_blocks=separate, compact=compact)
        kernels.finish()
    _nothing_is_left_to_the_calculus.reset_mock()
    built = build_block_mask(rule, grid, separate_full_blocks=separate, compact=compact)
    _nothing_is_left_to_the_calculus.assert_not_called()
    assert built.mask_mod is rule
    assert (built.seq_lengths, built.BLOCK_SIZE) == ((grid.q_len, grid.kv_len), grid.block_size)
    assert_same_lists(lists_of(built), expected, name, compact)


def test_until_there_is_a_kernel_the_calculus_answers(_nothing_is_left_to_the_calculus: mock.Mock) -> None:
    table = torch.arange(50)

    def rule(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (table[q_idx] ^ 21) + kv_idx > 5

    grid = Grid(40, 40, (16, 16))
    kernels.finish()
    built = build_block_mask(rule, grid)
    _nothing_is_left_to_the_calculus.assert_called_once()
    assert_same_lists(lists_of(built), lists_by_calculus(rule, grid), "rule")


@pytest.mark.parametrize("sizes", [(0, 40, 1, 1), (40, 0, 1, 1), (0, 0, 1, 1), (40, 40, 0, 1), (40, 40, 2, 0)], ids=str)
def test_empty_grid(sizes: tuple[int, int, int, int]) -> None:
    q_len, kv_len, batch, heads = sizes
    rule, grid = RULES["causal"][0], Grid(q_len, kv_len, (16, 16), B=batch, H=heads)
    for _ in range(2):
        built = build_block_mask(rule, grid)
        kernels.finish()
        assert_same_lists(lists_of(built), lists_by_calculus(rule, grid), str(sizes))


NARROW = torch.arange(-20, 20).to(torch.int8)


def narrow_below(number: int) -> Rule:
    return lambda b, h, q, k: (NARROW[q] < number) & (q >= k)


def constant_of(tensor: torch.Tensor) -> Rule:
    return lambda b, h, q, k: torch.full_like(q, tensor) + q > k + 9


def window_of(window: int) -> Rule:
    return lambda b, h, q, k: (q - k < window) & (q >= k)


# Rules that are made anew with other values. What is remembered of the first must not be said of the second.
MADE_ANEW: dict[str, tuple[Rule, ...]] = {
    "window": (window_of(5), window_of(30), window_of(0), window_of(-3), window_of(1 << 40)),
    "number that fits its table no longer": (narrow_below(3), narrow_below(100), narrow_below(300)),
    "constant of a tensor": (constant_of(torch.tensor(2)), constant_of(torch.tensor(9)), constant_of(torch.tensor(-9))),
}


@pytest.mark.parametrize("name", MADE_ANEW)
def test_rule_made_anew_with_other_values(name: str) -> None:
    grid = Grid(40, 20, (32, 16))
    first = MADE_ANEW[name][0]
    for _ in range(2):
        build_block_mask(first, grid)
        kernels.finish()
    for rule in (*MADE_ANEW[name], first):
        built = build_block_mask(rule, grid)
        kernels.finish()
        assert_same_lists(lists_of(built), lists_by_calculus(rule, grid), name)


def test_tensor_that_changes_in_place() -> None:
    number, table, grid = torch.tensor(3), torch.arange(40) // 9, Grid(40, 20, (32, 16))

    def rule(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (q_idx - kv_idx < number) & (table[q_idx] == table[kv_idx]) | (torch.full_like(q_idx, number) > kv_idx)

    for value in (3, 20):
        number.fill_(value)
        table.copy_(torch.arange(40) // value)
        for _ in range(2):
            built = build_block_mask(rule, grid)
            kernels.finish()
        assert_same_lists(lists_of(built), lists_by_calculus(rule, grid), f"value {value}")
