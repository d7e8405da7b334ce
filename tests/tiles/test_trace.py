"""The recorded graph: one name per operation however it is spelled, what depends on what, and what is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mods.tiles import Grid, analyse
from attn_mods.tiles import trace as tracing
from attn_mods.tiles.graph import Graph
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY
from attn_mods.tiles.rule import ControlFlowError, RuleError, Unsupported, check_rule
from attn_mods.tiles.trace import Symbol, trace
from tests.block_mask_equality import assert_sound, dense_truth

GRID = Grid(8, 8, (4, 4), B=2, H=2)
BINARY = (
    *(torch.sub, torch.rsub, torch.add, torch.mul, torch.minimum, torch.maximum, torch.bitwise_and, torch.bitwise_xor),
    *(torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne, torch.Tensor.__rsub__, operator.gt, operator.sub),
)
"""Operations of two operands; some are recorded as others with the operands the other way round."""
TABLE = torch.arange(8)
FLAGS = torch.arange(8) > 3


def graph_of(rule: Callable[..., Any]) -> Graph:
    return trace(rule, GRID)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: q < k,
        lambda b, h, q, k: torch.lt(q, k),
        lambda b, h, q, k: q.lt(k),
        lambda b, h, q, k: torch.less(q, k),
        lambda b, h, q, k: torch.Tensor.less(q, k),
    ],
)
def test_spellings_of_one_operation(rule: Callable[..., Any]) -> None:
    assert graph_of(rule).root.operation == "lt"


def test_reflected_operands_are_in_written_order() -> None:
    difference = graph_of(lambda b, h, q, k: (5 - q) < k).nodes[-2]
    assert (difference.operation, difference.arguments[0]) == ("sub", 5)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: torch.max(q, k) < 5,
        lambda b, h, q, k: q.max(k) < 5,
        lambda b, h, q, k: torch.max(q, other=k) < 5,
        lambda b, h, q, k: torch.maximum(q, k) < 5,
    ],
)
def test_the_larger_of_two(rule: Callable[..., Any]) -> None:
    assert [node.operation for node in graph_of(rule).nodes] == ["index", "index", "maximum", "lt"]


def test_an_operation_that_returns_several_tensors_gives_a_tuple_of_its_kind() -> None:
    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        values, indices = torch.stack([q, k]).sort()
        parts = torch.stack([q, k]).unbind()
        assert torch.stack([q, k]).topk(1).indices.shape == (1,)
        return (values[0] + parts[1] < 5) & (indices[0] == 0)

    names = [node.operation for node in graph_of(rule).nodes]
    assert {"sort[0]", "sort[1]", "select"} <= set(names)


def test_many_results_are_not_followed() -> None:
    table = torch.arange(64).view(8, 8)
    analysis = analyse(lambda b, h, q, k: torch.stack(table[q].split(1)).sum() > 40 + k, GRID)
    assert analysis.reason is not None and "split returns tuple" in analysis.reason


def test_rounding_mode_names_the_operation() -> None:
    names = [
        node.operation
        for node in graph_of(
            lambda b, h, q, k: torch.div(q, 2, rounding_mode="trunc") == torch.div(k, 2, rounding_mode="floor")
        ).nodes
    ]
    assert {"truncate_divide", "floor_divide"} <= set(names)


def test_chained_lookups_are_one() -> None:
    table = torch.zeros(8, 8, dtype=torch.bool)
    root = graph_of(lambda b, h, q, k: table[q][k]).root
    assert root.operation == "lookup"
    assert root.arguments[0].shape == (8, 8)
    assert len(root.arguments) == 3


def test_unneeded_nodes_are_dropped() -> None:
    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        _ = q * 1000 + k
        return q >= k

    assert [node.operation for node in graph_of(rule).nodes] == ["index", "index", "ge"]


@pytest.mark.parametrize(
    ("rule", "dependence"),
    [
        (lambda b, h, q, k: q >= k, QUERY | KEY),
        (lambda b, h, q, k: FLAGS[k], KEY),
        (lambda b, h, q, k: b.new_ones((), dtype=torch.bool), 0),
        (lambda b, h, q, k: b.new_ones((), dtype=torch.bool) & (k > h), KEY | HEAD),
        (lambda b, h, q, k: torch.tensor(True), 0),
        (lambda b, h, q, k: (q > b) & (k > h), BATCH | HEAD | QUERY | KEY),
    ],
)
def test_dependence(rule: Callable[..., Any], dependence: int) -> None:
    assert graph_of(rule).root.dependence == dependence


def test_metadata_of_a_symbol() -> None:
    seen: dict[str, Any] = {}

    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen.update(shape=q.shape, dim=q.dim(), dtype=q.dtype, device=q.device, tensor=isinstance(q, torch.Tensor))
        seen.update(symbol=type(TABLE[q]) is Symbol, vector=torch.stack([q, k]).shape, meta=q.is_meta)
        return q >= k

    graph_of(rule)
    assert seen == {
        "shape": (),
        "dim": 0,
        "dtype": torch.int64,
        "device": torch.device("cpu"),
        "tensor": True,
        "symbol": True,
        "vector": (2,),
        "meta": False,
    }


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: q >= k if q > 2 else k > 2,
        lambda b, h, q, k: (q >= k) and (k > 2),
        lambda b, h, q, k: not (q >= k),
        lambda b, h, q, k: q <= k < 5,
        lambda b, h, q, k: min(q, k) > 3,
        lambda b, h, q, k: [True, False][q],
        lambda b, h, q, k: q.item() > 3,
        lambda b, h, q, k: q in (1, 2),
        lambda b, h, q, k: torch.arange(int(q)).any(),
    ],
    ids=["if", "and", "not", "chained", "min", "list", "item", "in", "int"],
)
def test_reading_a_value_is_refused_with_advice(rule: Callable[..., Any]) -> None:
    with pytest.raises(ControlFlowError, match=r"(?s)<lambda>.*`&` for `and`.*torch\.where"):
        analyse(rule, GRID)


class Holder:
    def method(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda b, h, q: q > 0, "takes four arguments .* this one takes 3"),
        (lambda s, b, h, q, k: s, "five arguments make it a score_mod"),
        (Holder().method, r"Holder\.method: a bound method"),
        (7, "must be callable"),
        (lambda b, h, q, k: True, "returned True"),
        (lambda b, h, q, k: None, "returned None"),
        (lambda b, h, q, k: q - k, r"returned torch\.int64"),
        (lambda b, h, q, k: q < TABLE, r"returned shape \(8,\)"),
        (lambda b, h, q, k: torch.rand(()) < 0.5, "draws random numbers"),
        (lambda b, h, q, k: TABLE[TABLE.to(torch.uint8)[q]] > k, r"by torch\.uint8; convert it"),
        (lambda b, h, q, k: TABLE[(q > k)] > 2, r"by torch\.bool; .* torch\.where"),
        (lambda b, h, q, k: torch.stack([TABLE, TABLE])[q % 2, k / 2] > 2, r"by torch\.float32"),
    ],
)
def test_what_is_no_mask_mod_is_refused(rule: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        analyse(rule, GRID)


def test_callable_object_and_defaults_are_mask_mods() -> None:
    check_rule(Holder())
    check_rule(lambda b, h, q, k, window=3: q - k < window)


def test_random_numbers_leave_the_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuleError):
        trace(lambda b, h, q, k: torch.rand(()) < 0.5, GRID)
    assert torch.equal(torch.get_rng_state(), before)


def test_in_place_operations_are_not_recorded() -> None:
    with pytest.raises(Unsupported, match="in-place"):
        trace(lambda b, h, q, k: (q + 0).add_(1) > k, GRID)


def test_a_rule_that_cannot_be_recorded_is_scanned() -> None:
    analysis = analyse(lambda b, h, q, k: (q + 0).add_(1) > k, GRID)
    assert analysis.reason is not None
    assert "in-place" in analysis.reason
    assert analysis.scanned > 0


def test_the_rule_is_run_once_for_all_bands() -> None:
    calls = []

    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        calls.append(1)
        return q >= k

    analyse(rule, Grid(4096, 4096, (16, 16)))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda b, h, q, k: TABLE[q + 1] >= k, IndexError, "index 8 is out of bounds"),
        (lambda b, h, q, k: torch.stack([FLAGS, FLAGS])[2, q], IndexError, "index 2 is out of bounds"),
        (lambda b, h, q, k: torch.stack([FLAGS, FLAGS])[q % 2, torch.tensor(-9)], IndexError, "index -9 is out"),
        (lambda b, h, q, k: (q >= k) & (q.unheard_of > 2), AttributeError, "unheard_of"),
        (lambda b, h, q, k: (q // (1 - 1)) >= k, RuntimeError, "^ZeroDivisionError$"),
    ],
    ids=["out of range", "number out of range", "tensor out of range", "no such attribute", "division by zero"],
)
def test_the_rules_own_error_surfaces(rule: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        analyse(rule, GRID)
    assert type(raised.value) is error


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_an_operation_met_first_with_one_operand_twice(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of it must not forget which operand comes first."""
    monkeypatch.setattr(tracing, "_forms", {})

    def twice(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (function(q, q) >= 0) & (q >= k)

    def once(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return function(q, k) * 1 > 0

    analyse(twice, GRID)
    for _ in range(2):
        assert_sound(analyse(once, GRID).states, dense_truth(once, 2, 2, 8, 8), GRID)
