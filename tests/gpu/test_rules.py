"""Rules of all kinds on a card: kernels, calculus and torch give the same lists."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attn_mods import masks
from attn_mods.fused import kernels
from attn_mods.mask import Mask
from attn_mods.tiles import Grid, RuleError
from attn_mods.tiles.rule import Rule
from tests.fused.comparison import assert_true_planes, lists_by_calculus, planes_of, true_codes
from tests.fused.expression_values import assert_as_torch
from tests.fused.written_rules import (
    HARD_WITH_KERNELS,
    HARD_WITHOUT_KERNELS,
    documents,
    grid,
    grids,
    unfit_rules,
    written_rules,
)
from tests.gpu.rules_on_a_card import DEVICE, assert_lists_agree, moved
from tests.tiles.hard_rules import hard_case
from tests.tiles.rules import Case, random_case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

written = functools.cache(written_rules)
unfit = functools.cache(unfit_rules)

RANDOM_RULES, CHUNK = 500, 10


def test_expressions_compute_what_torch_does(record_property: Callable[[str, object], None]) -> None:
    executed = assert_as_torch(DEVICE)
    record_property("expressions compared with torch on a card", executed)
    assert executed >= 190


@pytest.mark.parametrize("name", written("cpu"))
def test_written_rule(name: str) -> None:
    rule, where = written(DEVICE)[name], grid(DEVICE)
    planes = planes_of(rule, where, name)
    assert planes is not None, f"{name}: no kernel"
    assert_true_planes(planes, true_codes(rule, where), name)
    assert assert_lists_agree(rule, where, name, against_torch=False)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch loops over isin
@pytest.mark.parametrize("name", unfit("cpu"))
def test_no_kernel_for(name: str) -> None:
    rule, where = unfit(DEVICE)[name], grid(DEVICE)
    assert planes_of(rule, where, name) is None


@pytest.mark.parametrize("name", HARD_WITH_KERNELS)
def test_hard_rule(name: str) -> None:
    case = hard_case(name)
    where = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H, device=DEVICE)
    assert assert_lists_agree(moved(case.source), where, name), f"{name}: no kernel"


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, about operations without a batching rule
def test_hard_rules_without_kernels() -> None:
    for name in sorted(HARD_WITHOUT_KERNELS):
        case = hard_case(name)
        where = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H, device=DEVICE)
        assert planes_of(moved(case.source), where, name) is None, name


@pytest.mark.parametrize("where", grids(DEVICE), ids=lambda where: f"{where.q_len}x{where.kv_len}, {where.block_size}")
def test_grid(where: Grid) -> None:
    for name, rule in (("documents", documents(DEVICE)), ("causal", lambda b, h, q, k: q >= k)):
        assert assert_lists_agree(rule, where, name)


def outcome(case: Case) -> str:
    """What became of a rule: "fused", "unfit", or "refused" by torch. Raises AssertionError if lists are not equal."""
    where = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H, device=DEVICE)
    rule = moved(case.source)
    try:
        expected = true_codes(rule, where)
    except Exception:  # torch's own, of a rule that it refuses
        return "refused"
    try:
        planes = planes_of(rule, where, "random rule")
    except RuleError:  # a number returned, which torch refuses too
        return "refused"
    if planes is None:
        return "unfit"
    assert_true_planes(planes, expected, f"seed {case.seed}")
    assert assert_lists_agree(rule, where, f"seed {case.seed}")
    return "fused"


@pytest.mark.parametrize("first", range(0, RANDOM_RULES, CHUNK))
def test_random_rules(first: int, record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        for seed in range(first, first + CHUNK):
            case = random_case(seed)
            try:
                counts[outcome(case)] += 1
            except AssertionError as error:
                failures.append(f"{error}\n{case}")
    for name, count in counts.items():
        record_property(f"random rules on a card, {name}", count)
    assert not failures, "\n\n".join(failures)
    assert counts.total() == CHUNK
    assert counts["fused"] >= 1, f"no rule of {CHUNK} has a kernel: {dict(counts)}"


# Longer than the kernels read at once, with more rectangles than one, ragged at both ends.
LONG: dict[str, Callable[[int], Mask]] = {
    "causal": lambda length: masks.Causal(),
    "sliding_window": lambda length: masks.SlidingWindow(window=900),
    "window per head": lambda length: masks.SlidingWindow(window=torch.tensor([5, 700, length], device=DEVICE)),
    "packed": lambda length: (
        masks.Document(torch.tensor([0, 30, 31, 900, 2000, length], device=DEVICE)) & masks.Causal()
    ),
    "prefix per sample": lambda length: masks.PrefixLm(prefix=torch.tensor([300, 1], device=DEVICE)),
    "dilated": lambda length: masks.DilatedWindow(window=9, dilation=40),
    "all but a band": lambda length: ~masks.WindowSymmetric(radius=50),
    "nothing": lambda length: masks.Causal() & masks.AntiCausal() & ~masks.BlockDiagonal(block=1),
}


@pytest.mark.parametrize("size", [(4500, 4500, 16), (2100, 9000, 8), (16_500, 16_500, 128)], ids=str)
@pytest.mark.parametrize("name", LONG)
def test_long_lengths(name: str, size: tuple[int, int, int]) -> None:
    q_len, kv_len, block = size
    mask = LONG[name](kv_len)
    batch, heads = mask.batch_and_heads()
    where = Grid(q_len, kv_len, (block, block), batch, heads, device=DEVICE)
    assert assert_lists_agree(mask.mask_mod(), where, name, against_torch=False)


WINDOW, TABLE = 40, torch.arange(300)


class Kept:
    """A rule that is no function, with a table of its own."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return self.table[q_idx] >= self.table[kv_idx]


CLOSURES = ("helper", "global", "branch", "loop", "captured number", "partial", "object", "lambda")


def closures() -> dict[str, Rule]:
    """Rules as users write them: closures over numbers, tensors and functions, partials and objects."""
    window, table, number = 30, TABLE.to(DEVICE) // 7, torch.tensor(9, device=DEVICE)

    def distance(q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return q_idx - kv_idx

    def with_helper(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (distance(q_idx, kv_idx) < window) & (table[q_idx] == table[kv_idx])

    def with_global(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx - kv_idx).abs() < WINDOW

    def with_branch(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = q_idx >= kv_idx
        if window > 20:
            kept = kept & (q_idx - kv_idx < window * 2)
        return kept

    def with_loop(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = q_idx == kv_idx
        for step in (3, 50, 120):
            kept = kept | (q_idx - kv_idx == step)
        return kept

    def with_captured_number(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx % number == 0) | (q_idx - kv_idx < number) & (h < 2)

    def shifted(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, shift: int) -> Tensor:
        return with_global(b, h, q_idx + shift, kv_idx)

    return {
        "helper": with_helper,
        "global": with_global,
        "branch": with_branch,
        "loop": with_loop,
        "captured number": with_captured_number,
        "partial": functools.partial(shifted, shift=3),
        "object": Kept(table),
        "lambda": lambda b, h, q, k: (q >= k) & (table[k] != 5),
    }


@pytest.mark.parametrize("name", CLOSURES)
def test_closure(name: str) -> None:
    assert assert_lists_agree(closures()[name], Grid(300, 300, (128, 128), B=2, H=3, device=DEVICE), name)


def test_other_values_need_no_other_kernel() -> None:
    def packed(lengths: list[int], window: int) -> Rule:
        ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(DEVICE)
        return lambda b, h, q, k: (ids[q] == ids[k]) & (q - k < window)

    assert assert_lists_agree(packed([700], 30), Grid(700, 700, device=DEVICE), "packed")
    made = set(kernels._made)
    for lengths, window, size in (([100] * 9, 700, 900), ([1, 300, 5, 444], 5, 750), ([50, 1], 9, 51)):
        assert assert_lists_agree(packed(lengths, window), Grid(size, size, device=DEVICE), "packed")
    assert set(kernels._made) == made


@pytest.mark.parametrize("sizes", [(0, 40, 1, 1), (40, 0, 1, 1), (40, 40, 0, 1), (40, 40, 2, 0)], ids=str)
def test_empty_grid(sizes: tuple[int, int, int, int]) -> None:
    q_len, kv_len, batch, heads = sizes
    where = Grid(q_len, kv_len, (16, 16), batch, heads, device=DEVICE)
    assert planes_of(lambda b, h, q, k: q >= k, where) is None
    assert len(lists_by_calculus(lambda b, h, q, k: q >= k, where)) == 8
