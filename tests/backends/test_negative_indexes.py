"""Indexes of captured tensors: what is followed, on a stand-in of a generator; what is written, by torch's own."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from attn_mods.backends.negative_indexes import mend_indexes, mend_triton_kernels

SIZE = sympy.Integer(8)


class Variable:
    """What a generator calls a value it has written."""

    count = itertools.count()

    def __init__(self, dtype: torch.dtype) -> None:
        self.name, self.dtype = f"tmp{next(self.count)}", dtype

    def __str__(self) -> str:
        return self.name


def writer() -> Any:
    """Of a class like torch's, with another that says of an index where it is counted from the end."""

    class Writer:
        fixed_inputs = ("score", "b", "h", "m", "n")
        kernel = SimpleNamespace(kexpr=str, rename_indexing=lambda size: size)

        def load(self, name: str, index: Any) -> Any:
            return Variable(index)

        def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return Variable(torch.int64)

        def indirect_indexing(self, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
            return index

    for _ in range(2):  # the second time there is nothing left to mend
        mend_indexes(Writer, lambda writer, index, size: ("from the end of", size, index))
    return Writer()


class Operations:
    """The operations of a writer by their names."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self.writer._default(name, args, {})

    def read(self, name: str, dtype: torch.dtype = torch.int64) -> Any:
        """A position, or an element of a captured tensor."""
        return self.writer.load(name, dtype)


Index = Callable[[Operations, Any, Any], Any]

NEVER_NEGATIVE: dict[str, Index] = {
    "position": lambda ops, m, n: n,
    "sum of positions": lambda ops, m, n: ops.add(m, n),
    "block": lambda ops, m, n: ops.floordiv(m, ops.constant(128, torch.int64)),
    "distance": lambda ops, m, n: ops.abs(ops.sub(m, n)),
    "clamped": lambda ops, m, n: ops.minimum(ops.maximum(ops.sub(m, n), ops.constant(0, torch.int64)), "7"),
    "head or none": lambda ops, m, n: ops.mul(ops.read("h"), ops.constant(0, torch.int64)),
    "remainder": lambda ops, m, n: ops.remainder(ops.sub(m, n), "7"),
    "bits of both": lambda ops, m, n: ops.bitwise_and(m, ops.sub(m, n)),
    "comparison": lambda ops, m, n: ops.to_dtype(ops.lt(m, n), torch.int64),
    "either": lambda ops, m, n: ops.where(ops.lt(m, n), m, ops.index_expr(sympy.Integer(3), torch.int64)),
    "unsigned": lambda ops, m, n: ops.to_dtype(ops.read("table", torch.uint8), torch.int32),
}

MAY_BE_NEGATIVE: dict[str, Index] = {
    "difference": lambda ops, m, n: ops.sub(m, n),
    "of a table": lambda ops, m, n: ops.read("table"),
    "of a table of that name": lambda ops, m, n: ops.read("captured n"),
    "past": lambda ops, m, n: ops.add(m, ops.constant(-5, torch.int64)),
    "shifted by a table": lambda ops, m, n: ops.add(m, ops.read("table")),
    "bits of either": lambda ops, m, n: ops.bitwise_or(m, ops.sub(m, n)),
    "overflown too": lambda ops, m, n: ops.to_dtype(ops.to_dtype(m, torch.int16), torch.int64),
    "capped": lambda ops, m, n: ops.minimum(ops.sub(m, n), ops.constant(7, torch.int64)),
    "clamped from -1": lambda ops, m, n: ops.maximum(ops.sub(m, n), ops.constant(-1, torch.int64)),
    "C remainder": lambda ops, m, n: ops.mod(ops.sub(m, n), "7"),
    "remainder of -7": lambda ops, m, n: ops.remainder(m, ops.constant(-7, torch.int64)),
    "one of two": lambda ops, m, n: ops.where(ops.lt(m, n), m, ops.sub(m, n)),
    "overflown": lambda ops, m, n: ops.to_dtype(ops.to_dtype(m, torch.int8), torch.int64),
    "score": lambda ops, m, n: ops.to_dtype(ops.read("score", torch.float32), torch.int64),
    "symbol": lambda ops, m, n: ops.index_expr(sympy.Symbol("s0", integer=True), torch.int64),
}


def index_of(made: Any, build: Index) -> Any:
    operations = Operations(made)
    return build(operations, operations.read("m"), operations.read("n"))


@pytest.mark.parametrize("build", NEVER_NEGATIVE.values(), ids=NEVER_NEGATIVE.keys())
def test_an_index_that_cannot_be_negative_is_left_as_it_is(build: Index) -> None:
    made = writer()
    index = index_of(made, build)
    assert made.indirect_indexing(index, SIZE) is index


@pytest.mark.parametrize("build", MAY_BE_NEGATIVE.values(), ids=MAY_BE_NEGATIVE.keys())
def test_any_other_counts_from_the_end(build: Index) -> None:
    made = writer()
    index = index_of(made, build)
    assert made.indirect_indexing(index, SIZE) == ("from the end of", "8", index)
    assert made.indirect_indexing(index, SIZE, True, False) is index  # where torch says that it does not


def test_a_number_is_left_as_it_is() -> None:
    assert writer().indirect_indexing("3", SIZE) == "3"


def test_what_is_kept_on_disk_is_told_apart() -> None:
    mend_triton_kernels()
    kept: Any = torch.compiler.config
    assert kept.cache_key_tag.count("indexes mended by attn_mods") == 1


def test_the_generator_of_triton_kernels_writes_it() -> None:
    mend_triton_kernels()
    selection = importlib.import_module("torch._inductor.select_algorithm")
    common = importlib.import_module("torch._inductor.codegen.common")
    triton = importlib.import_module("torch._inductor.codegen.triton")
    virtualized = importlib.import_module("torch._inductor.virtualized")

    class Kernel(selection.TritonTemplateKernel):  # type: ignore[misc, name-defined]  # untyped
        """As much of the generator's kernel as an operation needs."""

        index_dtype, is_combo_kernel = "tl.int32", False

        def __init__(self) -> None:
            self.compute = importlib.import_module("torch._inductor.utils").IndentedBuffer()
            self.cse = common.CSE(name_prefix="tmp")
            self.current_node, self._load_mask, self.range_trees, self.kexpr = None, None, [], str
            self.args = common.KernelArgs()

        def create_cse_var(self, *arguments: Any, **named: Any) -> Any:
            return triton.TritonCSEVariable(*arguments, **named)

    kernel = Kernel()
    V, ops, zero = virtualized.V, virtualized.ops, sympy.Integer(0)
    sizes = SimpleNamespace(simplify=lambda size: size)
    graph = SimpleNamespace(get_current_device_or_throw=lambda: torch.device("cuda"), sizevars=sizes)
    operations = common.CSEProxy(kernel, triton.TritonOverrides())
    with V.set_kernel_handler(kernel), V.set_graph_handler(graph), V.set_ops_handler(operations):
        made = selection.ModificationWrapper(kernel, 0, {"m": "q_idx", "n": "kv_idx"}, None)
        with V.set_ops_handler(made):
            query, key = made.load("m", zero), made.load("n", zero)
            ops.indirect_indexing(ops.abs(ops.sub(key, query)), SIZE)
            assert "where" not in kernel.compute.getvalue()
            written = []
            for size in (8, 2 * sympy.Symbol("s65", integer=True)):  # the second changes from call to call
                index = ops.indirect_indexing(ops.sub(key, query), size)
                written.append((str(index), kernel.compute.getvalue().splitlines()[-1]))
    assert [line for _, line in written] == [
        f"{written[0][0]} = tl.where(tmp2 < 0, tmp2 + 8, tmp2)",
        f"{written[1][0]} = tl.where(tmp2 < 0, tmp2 + 2*ks0, tmp2)",
    ]
    assert kernel.args.sizevars == {sympy.Symbol("s65", integer=True): "ks0"}
