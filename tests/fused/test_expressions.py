"""One operation as an expression: what torch computes, bit for bit, and nothing of what torch computes otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attn_mods.fused.expressions import Text, expression, literal
from attn_mods.fused.form import Unfit
from tests.fused.expression_values import assert_as_torch

NARROW = (torch.int16, torch.int8, torch.uint8)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of numbers that overflow, as they do in torch
def test_expressions_compute_what_torch_does(record_property: Callable[[str, object], None]) -> None:
    executed = assert_as_torch("cpu")
    record_property("expressions compared with torch", executed)
    assert executed >= 190


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "neg", "floor_divide", "and", "shift_left", "clamp"])
def test_narrow_arithmetic_is_unfit(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(Unfit, match=name):
        expression(name, dtype, [Text("a", dtype), Text("b", dtype)], {})


@pytest.mark.parametrize("name", ["pow", "sqrt", "lookup", "isin", "no operation at all"])
def test_operation_without_an_expression_is_unfit(name: str) -> None:
    with pytest.raises(Unfit, match=f"no expression for {name} in torch.int64"):
        expression(name, torch.int64, [Text("a", torch.int64)], {})


def test_named_operand_is_unfit() -> None:
    with pytest.raises(Unfit, match="add with alpha"):
        expression("add", torch.int64, [Text("a", torch.int64)] * 2, {"alpha": literal(2)})


def test_constants_keep_their_dtype() -> None:
    assert literal(True) == Text("tl.full((), 1, tl.int1)", torch.bool)
    assert literal(1) == Text("tl.full((), 1, tl.int64)", torch.int64)
    for value in ((1 << 63) - 1, -(1 << 63)):
        assert str(value) in literal(value).text
    for value in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(Unfit, match="beyond int64"):
            literal(value)


def test_ends_of_a_clamp() -> None:
    value, three, five = Text("a", torch.int64), Text("3", torch.int64), Text("5", torch.int64)
    both = "tl.minimum(tl.maximum(a, 3), 5)"
    assert expression("clamp", torch.int64, [value, three, five], {}) == both
    assert expression("clamp", torch.int64, [value], {"max": five, "min": three}) == both
    assert expression("clamp", torch.int64, [value, three], {"max": five}) == both
    assert expression("clamp", torch.int64, [value], {"max": five}) == "tl.minimum(a, 5)"
    assert expression("clamp", torch.int64, [value, three], {}) == "tl.maximum(a, 3)"
