"""The form of a rule: with its values it says all that the rule computes, and without them what they may be."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods.fused import kernels
from attn_mods.fused.form import Call, Index, Literal, Number, Operand, Plain, Result, Step, Table, Unfit, form_of
from attn_mods.tiles import Grid
from attn_mods.tiles.grid import QUERY
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import trace
from tests.block_mask_equality import dense_truth
from tests.fused.comparison import assert_true_planes, planes_of, true_codes
from tests.fused.written_rules import HARD_WITH_KERNELS, grid, unfit_rules, written_rules
from tests.tiles.hard_rules import hard_case
from tests.tiles.rules import random_case

GRID = Grid(40, 40, (16, 16), B=2, H=3)
WRITTEN = written_rules("cpu")

# What each operation computes. An operation that is missing here fails the test.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "truncate_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "same": torch.clone,
} | {
    name: getattr(torch, name)
    for name in (
        *("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "floor_divide", "remainder", "fmod", "pow"),
        *("neg", "abs", "square", "sign", "floor", "ceil", "trunc", "round", "relu", "minimum", "maximum", "clamp"),
        *("clamp_min", "clamp_max", "where", "logical_and", "logical_or", "logical_xor", "logical_not"),
    )
}


def form(rule: Rule, grid: Grid = GRID) -> Call:
    return form_of(trace(rule, grid), grid)


def evaluated(call: Call, grid: Grid) -> Tensor:
    """What a form computes with its values, at every position: bool [B, H, q_len, kv_len]."""
    values: list[Tensor] = []
    for step in call.form:
        values.append(_step(step, call, values, grid))
        assert values[-1].dtype == step.dtype
    return values[-1].expand(grid.B, grid.H, grid.q_len, grid.kv_len)


def _step(step: Step, call: Call, values: list[Tensor], grid: Grid) -> Tensor:
    if step.operation == "index":
        variable = step.operands[0]
        assert isinstance(variable, Literal)
        return grid.index_values(int(variable.value))
    operands = [_operand(operand, call, values) for operand in step.operands]
    if step.operation == "literal":
        return torch.tensor(operands[0], dtype=step.dtype)
    if step.operation == "lookup":
        table, *indices = operands
        return torch.as_tensor(table[tuple(indices)])
    if step.operation == "cast":
        return torch.as_tensor(operands[0].to(step.dtype))
    split = len(operands) - len(step.keywords)
    keywords = dict(zip(step.keywords, operands[split:], strict=True))
    if step.operation == "same" and isinstance(operands[0], Tensor):
        return operands[0].clone()
    return torch.as_tensor(FUNCTIONS[step.operation](*operands[:split], **keywords))


def _operand(operand: Operand, call: Call, values: list[Tensor]) -> Any:
    if isinstance(operand, Result):
        return values[operand.place]
    if isinstance(operand, Number):
        value = call.integers[operand.place]
        assert operand.sign == (value > 0) - (value < 0)
        return value
    if isinstance(operand, Table):
        assert call.tables[operand.place].dtype == operand.dtype
        return call.tables[operand.place]
    if isinstance(operand, Index):
        return _operand(operand.value, call, values)
    return operand.value


@pytest.mark.parametrize("name", WRITTEN)
def test_form_and_values_say_all_of_a_written_rule(name: str) -> None:
    where = grid("cpu")
    truth = dense_truth(WRITTEN[name], where.B, where.H, where.q_len, where.kv_len)
    assert torch.equal(evaluated(form(WRITTEN[name], where), where), truth)


@pytest.mark.parametrize("name", HARD_WITH_KERNELS)
def test_form_and_values_say_all_of_a_hard_rule(name: str) -> None:
    case = hard_case(name)
    where = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
    truth = dense_truth(case.rule, case.B, case.H, case.q_len, case.kv_len)
    assert torch.equal(evaluated(form(case.rule, where), where), truth)


def test_form_and_values_say_all_of_random_rules(record_property: Callable[[str, object], None]) -> None:
    read = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        for seed in range(250):
            case = random_case(seed)
            where = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
            try:
                call = form(case.rule, where)
            except Exception:  # no form, or no rule: then no kernel
                continue
            truth = dense_truth(case.rule, case.B, case.H, case.q_len, case.kv_len)
            assert torch.equal(evaluated(call, where), truth), case
            read += 1
    record_property("random rules read from their forms", read)
    assert read >= 120


TABLES = {
    dtype: torch.arange(40).to(dtype) % 2 for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
} | {torch.bool: torch.arange(40) % 2 == 0}
ORDER, PAIRS = torch.arange(40).flip(0), torch.arange(120).view(3, 40)
TALL = torch.arange(1600).view(40, 40)


def compared(table: Tensor) -> Rule:
    return lambda b, h, q, k: table[q] == table[k]


def captured(number: Tensor | int) -> Rule:
    return lambda b, h, q, k: q - k < number


def at_constant(row: int) -> Rule:
    return lambda b, h, q, k: PAIRS[row, q] > PAIRS[row, k]


# Each group: rules that no kernel of another one of the group may compute.
DIFFERENT: dict[str, list[Rule]] = {
    "comparisons": [
        lambda b, h, q, k: q < k,
        lambda b, h, q, k: q <= k,
        lambda b, h, q, k: q > k,
        lambda b, h, q, k: q >= k,
        lambda b, h, q, k: q == k,
        lambda b, h, q, k: q != k,
    ],
    "operands swapped": [lambda b, h, q, k: q - k > 3, lambda b, h, q, k: k - q > 3, lambda b, h, q, k: 3 - k > q],
    "a number first or last": [lambda b, h, q, k: 5 // (k + 1) > q, lambda b, h, q, k: (k + 1) // 5 > q],
    "variables": [
        lambda b, h, q, k: b >= k,
        lambda b, h, q, k: h >= k,
        lambda b, h, q, k: q >= k,
        lambda b, h, q, k: k >= k,
        lambda b, h, q, k: h >= q,
        lambda b, h, q, k: b >= h,
    ],
    "arithmetic": [
        lambda b, h, q, k: (q - 20) + (k + 1) > 2,
        lambda b, h, q, k: (q - 20) - (k + 1) > 2,
        lambda b, h, q, k: (q - 20) * (k + 1) > 2,
        lambda b, h, q, k: (q - 20) // (k + 1) > 2,
        lambda b, h, q, k: (q - 20) % (k + 1) > 2,
        lambda b, h, q, k: torch.fmod(q - 20, k + 1) > 2,
        lambda b, h, q, k: torch.minimum(q - 20, k + 1) > 2,
        lambda b, h, q, k: torch.maximum(q - 20, k + 1) > 2,
    ],
    "joined truths": [
        lambda b, h, q, k: (q >= k) & (k > 3) | (q < 9),
        lambda b, h, q, k: (q >= k) & ((k > 3) | (q < 9)),
        lambda b, h, q, k: (q >= k) | (k > 3) & (q < 9),
        lambda b, h, q, k: (q >= k) ^ (k > 3) & (q < 9),
        lambda b, h, q, k: ~(q >= k) & (k > 3) | (q < 9),
    ],
    "the same operands": [lambda b, h, q, k: (q - k) * (q + k) > 0, lambda b, h, q, k: (q - k) * (q - k) > 0],
    "signs of a number": [captured(5), captured(0), captured(-5)],
    "numbers too large for an argument": [captured(5), captured(1 << 31), captured((1 << 31) + 1), captured(1 << 40)],
    "numbers too small for an argument": [captured(-5), captured(-(1 << 31)), captured(-(1 << 31) - 1)],
    "a number, a truth and tensors": [
        captured(1),
        captured(True),
        captured(torch.tensor(1)),
        lambda b, h, q, k: q - k < q.new_ones(()),
    ],
    "truths compared": [lambda b, h, q, k: (q >= k) == True, lambda b, h, q, k: (q >= k) == 1],  # noqa: E712
    "Python's truths": [
        lambda b, h, q, k: torch.where(q >= k, True, k > 9),
        lambda b, h, q, k: torch.where(q >= k, False, k > 9),
    ],
    "numbers read as bits": [
        lambda b, h, q, k: (q - k) & 3 == 1,
        lambda b, h, q, k: (q - k) & 5 == 1,
        lambda b, h, q, k: (q - k) & 7 == 1,
        lambda b, h, q, k: (q - k) | 3 == 1,
        lambda b, h, q, k: (q - k) ^ 3 == 1,
    ],
    "shifts": [
        lambda b, h, q, k: (q - k) >> 1 > 2,
        lambda b, h, q, k: (q - k) >> 2 > 2,
        lambda b, h, q, k: (q - k) << 2 > 2,
        lambda b, h, q, k: 2 << (k % 4) > q,
    ],
    "powers": [
        lambda b, h, q, k: (q - k) ** 2 < 9,
        lambda b, h, q, k: (q - k) ** 3 < 9,
        lambda b, h, q, k: torch.square(q - k) < 9,
    ],
    "dtypes of tables": [compared(table) for table in TABLES.values()],
    "casts": [
        lambda b, h, q, k: q.to(torch.int32) > k,
        lambda b, h, q, k: q.to(torch.int8) > k,
        lambda b, h, q, k: q.to(torch.uint8) > k,
        lambda b, h, q, k: q.to(torch.bool) > k,
        lambda b, h, q, k: q.to(torch.int64) > k,
    ],
    "branches swapped": [
        lambda b, h, q, k: torch.where(q >= k, q - 9, k) > 3,
        lambda b, h, q, k: torch.where(q >= k, k, q - 9) > 3,
    ],
    "ends of a clamp": [
        lambda b, h, q, k: (q - k).clamp(min=3) > 5,
        lambda b, h, q, k: (q - k).clamp(max=3) > 5,
        lambda b, h, q, k: (q - k).clamp(3, None) > 5,
        lambda b, h, q, k: (q - k).clamp(None, 3) > 5,
        lambda b, h, q, k: (q - k).clamp(3, 3) > 5,
        lambda b, h, q, k: (q - k).clamp(min=3, max=3) > 5,
        lambda b, h, q, k: (q - k).clamp(max=3, min=3) > 5,
        lambda b, h, q, k: torch.clamp_min(q - k, 3) > 5,
        lambda b, h, q, k: torch.clamp_max(q - k, 3) > 5,
    ],
    "named arguments": [
        lambda b, h, q, k: torch.add(q, k) > 5,
        lambda b, h, q, k: torch.add(q, k, alpha=2) > 5,
        lambda b, h, q, k: torch.sub(q, k) > 5,
        lambda b, h, q, k: torch.sub(q, k, alpha=2) > 5,
    ],
    "what is looked up": [
        lambda b, h, q, k: ORDER[q] > ORDER[k],
        lambda b, h, q, k: ORDER[k] > ORDER[q],
        lambda b, h, q, k: ORDER[q] > ORDER[q],
        lambda b, h, q, k: ORDER[ORDER[q]] > ORDER[k],
        lambda b, h, q, k: ORDER[q] > k,
        lambda b, h, q, k: q > ORDER[k],
    ],
    "indices": [
        lambda b, h, q, k: PAIRS[h, q] > k,
        lambda b, h, q, k: PAIRS[b, q] > k,
        lambda b, h, q, k: PAIRS[h, k] > k,
        lambda b, h, q, k: TALL[q, h] > k,
        lambda b, h, q, k: PAIRS[h, q - 1] > k,
    ],
    "indices inside and out": [lambda b, h, q, k: ORDER[q] > k, lambda b, h, q, k: ORDER[+q] > k],
    "constant indices": [at_constant(0), at_constant(1), at_constant(2)],
    "constants": [
        lambda b, h, q, k: q.new_ones(()) + q > k,
        lambda b, h, q, k: q.new_zeros(()) + q > k,
        lambda b, h, q, k: q.new_ones((), dtype=torch.int32) + q > k,
        lambda b, h, q, k: q.new_ones((), dtype=torch.bool) + q > k,
        lambda b, h, q, k: torch.full_like(q, 7) + q > k,
        lambda b, h, q, k: torch.full_like(q, 8) + q > k,
    ],
    "constant results": [
        lambda b, h, q, k: q.new_ones((), dtype=torch.bool),
        lambda b, h, q, k: q.new_zeros((), dtype=torch.bool),
        lambda b, h, q, k: torch.tensor(True),
    ],
}


@pytest.mark.filterwarnings("ignore:.*joins a boolean and an integer")
@pytest.mark.parametrize("name", DIFFERENT)
def test_forms_differ(name: str) -> None:
    forms = [form(rule).form for rule in DIFFERENT[name]]
    for (first, one), (second, other) in itertools.combinations(enumerate(forms), 2):
        assert one != other, f"{name}: rules {first} and {second} have one form"
    assert len(set(forms)) == len(forms)


def window_of(window: int) -> Rule:
    return lambda b, h, q, k: (q - k < window) & (q >= k)


def packed(lengths: list[int], window: int) -> Rule:
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        _ = ids[q_idx] * 17  # recorded, and left out since nothing needs it
        return (ids[q_idx] == ids[kv_idx]) & (q_idx - kv_idx < window)

    return rule


def per_head(*windows: int) -> Rule:
    table = torch.tensor(windows)
    return lambda b, h, q, k: (q - k).abs() < table[h % len(windows)]


# Each group: rules of one form, whose values alone differ.
EQUAL: dict[str, list[Rule]] = {
    "window": [window_of(1), window_of(17), window_of((1 << 31) - 1)],
    "documents and window": [packed([40], 3), packed([7] * 9, 30), packed([1, 30, 5, 44], 5)],
    "window per head": [per_head(1, 5, 30), per_head(2, 2), per_head(40, 9, 1, 5)],
    "captured number": [captured(torch.tensor(3)), captured(torch.tensor(-70)), captured(torch.tensor(0))],
    "tables by rows and by columns": [
        lambda b, h, q, k: PAIRS[0, q] > k,
        lambda b, h, q, k: TALL[0, q] > k,
        lambda b, h, q, k: TALL.T[0, q] > k,
    ],
    "tables swapped": [lambda b, h, q, k: ORDER[q] > PAIRS[1, k], lambda b, h, q, k: TALL[1][:40][q] > TALL[1, k]],
    "number first or last": [lambda b, h, q, k: q - k < 5, lambda b, h, q, k: q - k < 7],
    "spellings": [
        lambda b, h, q, k: torch.ge(q, k) & (k > 3),
        lambda b, h, q, k: torch.bitwise_and(q.greater_equal(k), k.gt(9)),
    ],
}


@pytest.mark.parametrize("name", EQUAL)
def test_values_are_no_part_of_a_form(name: str) -> None:
    forms = [form(rule).form for rule in EQUAL[name]]
    assert len(set(forms)) == 1


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", ["window", "documents and window", "window per head", "tables by rows and by columns"])
def test_other_values_need_no_other_kernel(name: str) -> None:
    """The kernels of the first rule compute the others, which are recorded anew."""
    first, *others = EQUAL[name]
    assert planes_of(first, GRID) is not None
    made = set(kernels._made)
    for rule in (*others, first):
        planes = planes_of(rule, GRID)
        assert planes is not None
        assert_true_planes(planes, true_codes(rule, GRID), name)
    assert set(kernels._made) == made


@pytest.mark.usefixtures("interpreter")
def test_other_lengths_offsets_and_sizes_need_no_other_kernel() -> None:
    rule = packed([7] * 9, 30)
    assert planes_of(rule, GRID) is not None
    made = set(kernels._made)
    for where in (Grid(33, 50, (16, 16)), Grid(1, 60, (16, 16), q_offset=20), Grid(40, 9, (16, 16), B=5, kv_offset=3)):
        planes = planes_of(rule, where)
        assert planes is not None
        assert_true_planes(planes, true_codes(rule, where), str(where))
    assert set(kernels._made) == made


def test_numbers_are_arguments_in_the_order_of_reading() -> None:
    call = form(lambda b, h, q, k: (q - k < 7) & (PAIRS[1, q] > -3) & (k * 5 > 0))
    assert call.integers == [7, 3, 40, -3, 5, 0]
    assert [table.data_ptr() for table in call.tables] == [PAIRS.data_ptr()]


def test_tables_are_made_contiguous_and_numbers_kept_beside_them() -> None:
    call = form(lambda b, h, q, k: TALL.T[q, 3] > ORDER[k])
    assert call.tables[0].is_contiguous()
    assert torch.equal(call.tables[0], TALL.T)
    assert call.tables[1] is ORDER


UNFIT = unfit_rules("cpu")


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch loops over isin
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("floating point", "torch.float"),
        ("a table of floating point", "torch.float"),
        ("trailing axes", "trailing axes"),
        ("membership", "operand|tensor"),
        ("a number too wide for its table", "broadcasting"),
    ],
)
def test_rule_without_a_form(name: str, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        form(UNFIT[name])


def unfit_for(grid: Grid) -> Iterator[tuple[str, Rule]]:
    far = torch.arange(30)
    yield "an index that leaves its table", lambda b, h, q, k: far[q] > k
    yield "a constant index that is not inside", lambda b, h, q, k: ORDER[-1] + q.new_zeros(()) > PAIRS[-1, k]
    yield "beyond 2 ** 30", lambda b, h, q, k: q > k


def test_what_only_torch_can_say_is_unfit() -> None:
    for reason, rule in unfit_for(GRID):
        where = Grid(40, 40, q_offset=(1 << 30) - 40) if reason == "beyond 2 ** 30" else GRID
        with pytest.raises(Unfit, match=reason.replace("*", r"\*")):
            form(rule, where)


def test_positions_below_the_limit_fit() -> None:
    assert form(lambda b, h, q, k: q > k, Grid(40, 40, q_offset=(1 << 30) - 41, kv_offset=41 - (1 << 30)))
    assert Plain(None) != Literal(0, int) and Result(QUERY) != Number(QUERY, 1)


def test_a_table_elsewhere_is_unfit() -> None:
    with pytest.raises(Unfit, match=r"captured tensor of torch.int64 on cpu"):
        form(lambda b, h, q, k: ORDER[q] > k, Grid(40, 40, device="meta"))
    with pytest.raises(Unfit, match=r"captured tensor"):
        form(lambda b, h, q, k: ORDER[:0][q + 3] > k)
