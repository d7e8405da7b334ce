"""Run a rule once on stand-ins for b, h, q_idx and kv_idx and record what it computes as a graph of nodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles import operations
from attn_mods.tiles.graph import Graph, Node, nodes_in
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid
from attn_mods.tiles.normalise import is_direct, normalise
from attn_mods.tiles.pointwise import apply
from attn_mods.tiles.precedence import warn_of_precedence
from attn_mods.tiles.rule import (
    NoRandomNumbers,
    Rule,
    RuleError,
    Unsupported,
    check_result,
    describe,
    reads_a_value,
    rule_name,
)


def trace(rule: Rule, grid: Grid) -> Graph:
    """Record what a rule computes.

    Raises:
        RuleError: If the rule decides in Python on an index value or returns no boolean tensor.
        Unsupported: If it does what cannot be recorded.
        Exception: Whatever the rule itself raises.
    """
    recorder = _Recorder(rule_name(rule), torch.device(grid.device))
    with torch.no_grad(), NoRandomNumbers(rule):
        result = rule(*(recorder.variable(variable) for variable in (BATCH, HEAD, QUERY, KEY)))
    check_result(rule, result)
    root = recorder.result(result)
    needed: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.number not in needed:
            needed[node.number] = node
            waiting.extend(node.operands())
    return Graph(root, tuple(needed[number] for number in sorted(needed)))


def recorded(rule: Rule, grid: Grid) -> tuple[Graph | None, str | None]:
    """The graph of a rule, or None and why it could not be recorded.

    Raises:
        RuleError: If the rule is no mask_mod.
    """
    try:
        graph = trace(rule, grid)
    except RuleError:
        raise
    except Exception as error:  # the scan then raises the rule's own error, if it is one
        return None, describe(error)
    warn_of_precedence(rule_name(rule), graph)
    return graph, None


class Symbol(Tensor):
    """A tensor without storage that stands for one value at all positions; every torch operation on it is recorded."""

    node: Node
    recorder: _Recorder

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation, or answer a question about dtype, shape or device."""
        with torch._C.DisableTorchFunctionSubclass():
            symbol = next(_symbols_in((arguments, keywords or {})))
            return symbol.recorder.operation(function, symbol, arguments, keywords or {})


def _symbols_in(value: Any) -> Iterator[Symbol]:
    if isinstance(value, Symbol):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _symbols_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _symbols_in(item)


class _Recorder:
    """Makes the nodes of one trace."""

    def __init__(self, label: str, device: torch.device) -> None:
        self.label = label
        self.device = device
        self.numbers = itertools.count()

    def variable(self, variable: int) -> Symbol:
        """The stand-in for b, h, q_idx or kv_idx."""
        return self.symbol(
            Node(next(self.numbers), "index", _no_function, (variable,), {}, variable, variable, torch.int64, (), True)
        )

    def symbol(self, node: Node) -> Symbol:
        """The tensor a rule holds for a node."""
        symbol = torch.empty(node.shape, dtype=node.dtype, device="meta").as_subclass(Symbol)
        symbol.node = node
        symbol.recorder = self
        return symbol

    def result(self, result: Tensor) -> Node:
        """The node of what the rule returned."""
        if isinstance(result, Symbol):
            return result.node
        value = self.captured(result)
        return Node(next(self.numbers), "captured", _no_function, (value,), {}, 0, 0, value.dtype, (), True)

    def captured(self, tensor: Tensor) -> Tensor:
        """A captured tensor as an operand."""
        if tensor.is_meta and self.device.type != "meta":
            raise Unsupported("an operation that torch does not let the calculus see")
        return tensor.detach()

    def operation(self, function: Any, symbol: Symbol, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Record one operation, or answer it at once."""
        name = getattr(function, "__name__", type(function).__name__)
        if name == "__get__":
            return self.property(function.__self__.__name__, symbol)
        if name in operations.METADATA:
            return function(*arguments, **keywords)
        if name in operations.READS_A_VALUE:
            raise reads_a_value(self.label, name)
        if operations.is_in_place(name) or "out" in keywords:
            raise Unsupported(f"the in-place operation {name}")
        arguments, keywords = self.operand(arguments), self.operand(keywords)
        if name in ("unbind", "__iter__"):
            return self.unbind(symbol, arguments, keywords)
        return self.symbol(self.node(*normalise(name, function, arguments, keywords, self.device)))

    def property(self, name: str, symbol: Symbol) -> Any:
        """The value of an attribute of a symbol."""
        if name == "device":
            return self.device
        if name in ("is_cuda", "is_cpu"):
            return self.device.type == name.removeprefix("is_")
        if name == "is_meta":
            return False
        if name in operations.METADATA_PROPERTIES:
            return getattr(symbol, name)
        raise Unsupported(f"the attribute {name}")

    def unbind(self, symbol: Symbol, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The parts of a value along a trailing axis."""
        axis = keywords.get("dim", arguments[1] if len(arguments) > 1 else 0)
        parts = tuple(
            self.symbol(self.node("select", torch.select, (arguments[0], axis, i), {}))
            for i in range(symbol.shape[axis])
        )
        return iter(parts) if not keywords and len(arguments) == 1 else parts

    def operand(self, value: Any) -> Any:
        """Arguments with symbols replaced by their nodes."""
        if isinstance(value, Symbol):
            if value.recorder is not self:
                raise Unsupported("a value of another trace")
            return value.node
        if isinstance(value, Tensor):
            return self.captured(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self.operand(item) for item in value)
        if isinstance(value, dict):
            return {key: self.operand(item) for key, item in value.items()}
        return value

    def node(self, operation: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Node:
        """A new node; its dtype and shape are those torch computes on stand-ins without storage."""
        if operation in operations.CREATION:
            arguments = (self.blank(arguments[0]), *arguments[1:])
        operands = tuple(nodes_in((arguments, keywords)))
        dependence = levels = 0
        for operand in operands:
            dependence |= operand.dependence
            levels |= operand.levels
        direct = is_direct(operation, (arguments, keywords), operands)
        draft = Node(
            next(self.numbers), operation, function, arguments, keywords, dependence, levels, torch.bool, (), direct
        )
        dtype, shape = _dtype_and_shape(draft)
        return replace(draft, dtype=dtype, shape=shape)

    def blank(self, like: Any) -> Any:
        """A constant with the dtype and shape of an operand whose value does not matter."""
        if not isinstance(like, Node):
            return like
        return Node(
            next(self.numbers), "blank", _no_function, (self.device,), {}, 0, like.levels, like.dtype, like.shape, True
        )


def _no_function(*_: Any) -> Any:
    raise Unsupported("a leaf has no function")


def _dtype_and_shape(node: Node) -> tuple[torch.dtype, tuple[int, ...]]:
    """What torch makes of the operands: read off a table, or computed on single ones, or on tensors without storage."""
    if node.operation == "lookup":
        table: Tensor = node.arguments[0]
        return table.dtype, tuple(table.shape[len(node.arguments) - 1 :])
    if node.direct and node.operation in operations.ELEMENTWISE:
        outcome: Any = apply(node, _ones, lambda tensor: torch.ones((), dtype=tensor.dtype))
    else:
        outcome = _without_values(node)
    if not isinstance(outcome, Tensor):
        raise Unsupported(f"{node.operation} returns {type(outcome).__name__}")
    return outcome.dtype, tuple(outcome.shape[4:])


def _without_values(node: Node) -> Any:
    """The node on tensors without storage, or where torch has no such operation, on ones."""
    try:
        return apply(node, _blank_of, lambda tensor: torch.empty_like(tensor, device="meta"))
    except (RuntimeError, NotImplementedError):
        return apply(node, _ones, lambda tensor: torch.ones(tensor.shape, dtype=tensor.dtype))


def _blank_of(node: Node) -> Tensor:
    return torch.empty((1, 1, 1, 1, *node.shape), dtype=node.dtype, device="meta")


@functools.cache
def _one(dtype: torch.dtype) -> Tensor:
    return torch.ones((1, 1, 1, 1), dtype=dtype)


def _ones(node: Node) -> Tensor:
    return _one(node.dtype).reshape((1,) * (4 + len(node.shape))).expand(1, 1, 1, 1, *node.shape)
