"""What is mended in torch's generator of code for the FLASH kernel, on stand-ins for its two classes."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from attn_mods.backends.flash_kernel import mend, mend_flash_kernel

NAN = float("nan")


def stand_ins() -> tuple[Any, Any]:
    """Classes as torch 2.11 has them, whose operations compute instead of writing code."""

    class Operations:
        gt = staticmethod(operator.gt)
        lt = staticmethod(operator.lt)
        ne = staticmethod(operator.ne)
        logical_or = staticmethod(operator.or_)
        add = staticmethod(operator.add)
        mod = staticmethod(lambda a, b: int(math.fmod(a, b)))
        remainder = mod

        @staticmethod
        def where(condition: Any, a: Any, b: Any) -> Any:
            return a if condition else b

        @staticmethod
        def maximum(a: Any, b: Any) -> Any:
            raise NotImplementedError

        @staticmethod
        def minimum(a: Any, b: Any) -> Any:
            raise NotImplementedError

        @staticmethod
        def to_dtype(x: Any, dtype: torch.dtype) -> str:
            return f"{x}.to({dtype})"

    class Writer:
        kernel = SimpleNamespace(kexpr=int, rename_indexing=lambda size: size)

        def load(self, name: str, index: Any) -> Any:
            raise NotImplementedError

        def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            raise NotImplementedError

        def _emit_scalar_fragment(self, text: str, cute_dtype: str, torch_dtype: torch.dtype) -> str:
            return f"read({text})"

        def indirect_indexing(self, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
            return index

    return Operations, Writer


@pytest.mark.parametrize(
    ("a", "b", "largest", "smallest"), [(1, 2, 2, 1), (2, 1, 2, 1), (3, 3, 3, 3), (-1.5, 0.0, 0.0, -1.5)], ids=str
)
def test_extremes(a: float, b: float, largest: float, smallest: float) -> None:
    operations, writer = stand_ins()
    mend(operations, writer)
    assert (operations.maximum(a, b), operations.minimum(a, b)) == (largest, smallest)


@pytest.mark.parametrize("pair", [(NAN, 1.0), (1.0, NAN)], ids=str)
def test_an_extreme_with_nan_is_nan_as_in_torch(pair: tuple[float, float]) -> None:
    operations, writer = stand_ins()
    mend(operations, writer)
    for name in ("maximum", "minimum"):
        theirs: Callable[..., Any] = getattr(torch, name)
        assert torch.tensor(getattr(operations, name)(*pair)).isnan() and theirs(*map(torch.tensor, pair)).isnan()


@pytest.mark.parametrize("b", [4, -4])
@pytest.mark.parametrize("a", range(-9, 10))
def test_a_remainder_has_the_sign_of_the_divisor(a: int, b: int) -> None:
    operations, writer = stand_ins()
    for _ in range(2):
        mend(operations, writer)
    assert operations.remainder(a, b) == int(torch.remainder(torch.tensor(a), b))
    assert operations.mod(a, b) == int(torch.fmod(torch.tensor(a), b))  # which is what the generator takes it for


def test_a_remainder_by_a_number_in_the_code() -> None:
    operations, writer = stand_ins()
    operations.remainder = staticmethod(lambda a, b: f"({a} % {b})")
    operations.where = staticmethod(lambda condition, a, b: f"where({condition}, {a}, {b})")
    operations.lt = operations.add = staticmethod(lambda a, b: f"[{a} {b}]")
    mend(operations, writer)
    assert operations.remainder("i", "4") == "where([(i % 4) 0], [(i % 4) 4], (i % 4))"


def test_numbers_and_indexes() -> None:
    operations, writer = stand_ins()
    for _ in range(2):  # the second time there is nothing left to mend
        mend(operations, writer)
    assert [writer()._emit_scalar_fragment(text, "Int32", torch.int32) for text in ("0", "-3", "tmp4")] == [
        "0",
        "-3",
        "read((tmp4).to(Int32))",
    ]
    variable = Path("tmp4")  # anything but text
    assert [operations.to_dtype(each, torch.int64) for each in ("0", variable)] == ["0", "tmp4.to(torch.int64)"]


def test_a_negative_index_counts_from_the_end() -> None:
    operations, writer = stand_ins()
    for _ in range(2):  # the second time there is nothing left to mend
        mend(operations, writer)
    operations.lt = staticmethod(lambda a, b: a < int(b))
    read = writer().indirect_indexing
    assert [read(index, 8) for index in range(-8, 8)] == [torch.arange(8)[index].item() for index in range(-8, 8)]


def test_the_generator_writes_an_index_that_counts_from_the_end() -> None:
    mend_flash_kernel()
    kernel_module = importlib.import_module("torch._inductor.codegen.cutedsl.cutedsl_kernel")
    common = importlib.import_module("torch._inductor.codegen.common")
    virtualized = importlib.import_module("torch._inductor.virtualized")

    class Kernel:
        """As much of the generator's kernel as an operation needs."""

        def __init__(self) -> None:
            self.body = self.compute = importlib.import_module("torch._inductor.utils").IndentedBuffer()
            self.cse, self.named_input_nodes, self.node_to_bounds = common.CSE(name_prefix="tmp"), {}, None
            self.current_node, self.kexpr = None, str

        def rename_indexing(self, size: Any) -> Any:
            return size

        def create_cse_var(self, *arguments: Any, **named: Any) -> Any:
            return common.CSEVariable(*arguments, **named)

    kernel = Kernel()
    writer = kernel_module.ModificationWrapperCuteDSL(kernel, 0, {"m": "q_idx", "n": "kv_idx"}, None)
    ops, zero = virtualized.ops, sympy.Integer(0)
    with virtualized.V.set_kernel_handler(kernel), virtualized.V.set_ops_handler(writer):
        query, key = writer.load("m", zero), writer.load("n", zero)
        ops.indirect_indexing(query, sympy.Integer(8))
        assert "where" not in kernel.body.getvalue()
        ops.indirect_indexing(ops.sub(key, query), sympy.Integer(8))
        ops.indirect_indexing(ops.abs(ops.sub(key, query)), sympy.Integer(8))
    assert kernel.body.getvalue().splitlines()[2:6] == [
        "tmp2 = (tmp1 - tmp0)",
        "tmp3 = operator.lt(tmp2, cute.full_like(tmp2, 0))",
        "tmp4 = (tmp2 + cute.full_like(tmp2, 8))",
        "tmp5 = cute.where(tmp3, tmp4, tmp2)",
    ]
    assert "where" not in "".join(kernel.body.getvalue().splitlines()[6:])


def test_the_installed_torch_has_both_extremes_then() -> None:
    mend_flash_kernel()
    from torch._inductor.codegen.cutedsl.cutedsl_op_overrides import CuteDSLOpOverrides  # imports the whole compiler

    for name in ("maximum", "minimum"):
        assert "NotImplementedError" not in getattr(CuteDSLOpOverrides, name).__code__.co_names
