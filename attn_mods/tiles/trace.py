"""Run a rule once on stand-ins for b, h, q_idx and kv_idx and record what it computes as a graph of nodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_mods.tiles import operations
from attn_mods.tiles.graph import Graph, Node, nodes_in
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid
from attn_mods.tiles.normalise import is_direct, normalise
from attn_mods.tiles.pointwise import SeveralResults, apply, look_up
from attn_mods.tiles.precedence import warn_of_precedence
from attn_mods.tiles.rule import (
    INDEX_DTYPES,
    NoRandomNumbers,
    Rule,
    RuleError,
    Unsupported,
    check_result,
    describe,
    draws_random_numbers,
    indexes_with,
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
    recorder = Recorder(rule_name(rule), torch.device(grid.device))
    with _Recording(rule, recorder):
        result = rule(*(recorder.variable(variable) for variable in (BATCH, HEAD, QUERY, KEY)))
    if type(result) is not Symbol or result.node.shape or result.node.dtype != torch.bool:
        check_result(rule, result)
    root = recorder.result(result)
    needed = {root.number: root}
    waiting = [root]
    while waiting:
        for operand in waiting.pop().operands():
            if operand.number not in needed:
                needed[operand.number] = operand
                waiting.append(operand)
    return Graph(root, tuple([needed[number] for number in sorted(needed)]))


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
    recorder: Recorder

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation, or answer a question about dtype, shape or device."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
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


class _Recording(NoRandomNumbers):
    """Hands every operation on symbols to the recorder, one step sooner than torch would."""

    def __init__(self, rule: Rule, recorder: Recorder) -> None:
        super().__init__(rule)
        self.recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation on symbols; what has none is called, unless it draws random numbers."""
        if Symbol in types:
            symbol = None if keywords else self.recorder.known_operation(function, arguments)
            return Symbol.__torch_function__(function, types, arguments, keywords) if symbol is None else symbol
        return super().__torch_function__(function, types, arguments, keywords)


class _Form(NamedTuple):
    """What is known of an operation on operands of given dtypes, whatever their values."""

    operation: str
    function: Any
    reflected: bool
    dtype: torch.dtype


_Kinds = tuple[Any, ...]
_forms: dict[tuple[Any, torch.dtype, _Kinds], _Form] = {}
"""Forms of operations already recorded once, by the default dtype: most of the time of a trace is finding them out."""

_SMALL = 1 << 31

_MOST_RESULTS = 4
"""Of one operation: each is a node of its own, which computes all of them."""


def _kind(value: Any) -> Any:
    """The dtype of a symbol with one value a position, int for a small int, None for all else."""
    if type(value) is Symbol:
        return value.node.dtype if not value.node.shape else None
    return int if type(value) is int and -_SMALL <= value < _SMALL else None


class Recorder:
    """Makes the nodes of one trace."""

    def __init__(self, label: str, device: torch.device) -> None:
        self.label = label
        self.device = device
        self.numbers = itertools.count(len(_VARIABLES))

    def variable(self, variable: int) -> Symbol:
        """The stand-in for b, h, q_idx or kv_idx."""
        return self.symbol(_VARIABLES[variable])

    def symbol(self, node: Node) -> Symbol:
        """The tensor a rule holds for a node."""
        symbol = _blank(node.dtype, node.shape).as_subclass(Symbol)
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
        return tensor

    def known_operation(self, function: Any, arguments: tuple[Any, ...]) -> Symbol | None:
        """Record an operation whose form is known, or return None.

        Only numbers and symbols without trailing axes have forms. An operation on int32 or narrower symbols may take
        some ints and not others, so that forms are kept for int64 and bool alone.
        """
        kinds = tuple([_kind(argument) for argument in arguments])
        form = _forms.get((function, torch.get_default_dtype(), kinds))
        if form is None:
            return self.known_lookup(*arguments) if function is Tensor.__getitem__ else None
        operands = []
        dependence = levels = 0
        for argument in arguments:
            if type(argument) is Symbol:
                if argument.recorder is not self:
                    return None
                argument = argument.node
                dependence |= argument.dependence
                levels |= argument.levels
            operands.append(argument)
        if form.reflected:
            operands.reverse()
        operation, called, _, dtype = form
        node = Node(next(self.numbers), operation, called, tuple(operands), {}, dependence, levels, dtype, (), True)
        return self.symbol(node)

    def known_lookup(self, table: Any, index: Any) -> Symbol | None:
        """Record `table[i, j, ...]` of a captured table with one int64 symbol an axis, or return None."""
        indices = index if type(index) is tuple else (index,)
        if type(table) is not Tensor or table.dim() != len(indices) or table.is_meta:
            return None
        dependence = levels = 0
        for symbol in indices:
            if type(symbol) is not Symbol or symbol.recorder is not self or _kind(symbol) != torch.int64:
                return None
            dependence |= symbol.node.dependence
            levels |= symbol.node.levels
        operands = (table, *[symbol.node for symbol in indices])
        number = next(self.numbers)
        return self.symbol(Node(number, "lookup", look_up, operands, {}, dependence, levels, table.dtype, (), True))

    def operation(self, function: Any, symbol: Symbol, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Record one operation, or answer it at once."""
        name = getattr(function, "__name__", type(function).__name__)
        if name == "__get__":
            return self.property(function.__self__.__name__, symbol)
        if name in operations.METADATA:
            return function(*arguments, **keywords)
        if name in operations.READS_A_VALUE:
            raise reads_a_value(self.label, name)
        if name in operations.DRAWS:
            raise draws_random_numbers(self.label)
        if operations.is_in_place(name) or "out" in keywords:
            raise Unsupported(f"the in-place operation {name}")
        if name == "__getitem__":
            self.check_positions(arguments[1])
        operands, keywords = self.operand(arguments), self.operand(keywords)
        if name in ("unbind", "__iter__"):
            parts = self.unbind(symbol, operands, keywords)
            return iter(parts) if name == "__iter__" else parts
        called = normalise(name, function, operands, keywords, self.device)
        try:
            node = self.node(*called)
        except SeveralResults as several:
            return self.several(several.results, *called)
        _remember(function, arguments, operands, node)
        return self.symbol(node)

    def several(self, results: Any, operation: str, function: Any, *operands: Any) -> Any:
        """A symbol for each tensor that an operation returns, in a tuple of the same kind."""
        is_tuple = isinstance(results, (tuple, list)) and all(isinstance(result, Tensor) for result in results)
        if not is_tuple or len(results) > _MOST_RESULTS:
            raise SeveralResults(operation, results)
        one_of = (functools.partial(_result, number, function) for number in range(len(results)))
        nodes = [self.node(f"{operation}[{number}]", called, *operands) for number, called in enumerate(one_of)]
        kind: Any = type(results)
        return kind([self.symbol(node) for node in nodes])

    def check_positions(self, index: Any) -> None:
        """Raise RuleError for values that are no positions, which torch takes for masks or not at all."""
        for symbol in _symbols_in(index):
            if symbol.node.dtype not in INDEX_DTYPES:
                raise indexes_with(self.label, symbol.node.dtype)

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

    def unbind(self, symbol: Symbol, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Symbol, ...]:
        """The parts of a value along a trailing axis."""
        axis = keywords.get("dim", arguments[1] if len(arguments) > 1 else 0)
        return tuple(
            self.symbol(self.node("select", torch.select, (arguments[0], axis, i), {}))
            for i in range(symbol.shape[axis])
        )

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
        number = next(self.numbers)
        if operation == "lookup":
            dtype, shape = arguments[0].dtype, tuple(arguments[0].shape[len(arguments) - 1 :])
        else:
            draft = Node(number, operation, function, arguments, keywords, dependence, levels, torch.bool, (), direct)
            dtype, shape = _dtype_and_shape(draft)
        return Node(number, operation, function, arguments, keywords, dependence, levels, dtype, shape, direct)

    def blank(self, like: Any) -> Any:
        """A constant with the dtype and shape of an operand whose value does not matter."""
        if not isinstance(like, Node):
            return like
        return Node(
            next(self.numbers), "blank", _no_function, (self.device,), {}, 0, like.levels, like.dtype, like.shape, True
        )


def _remember(function: Any, arguments: tuple[Any, ...], operands: tuple[Any, ...], node: Node) -> None:
    """Keep the form of an elementwise operation on int64 and bool symbols and small ints."""
    kinds = tuple(_kind(argument) for argument in arguments)
    if node.operation not in operations.ELEMENTWISE or not node.direct or node.keywords:
        return
    if any(kind not in (torch.int64, torch.bool, int) for kind in kinds):
        return
    if len(operands) > 1 and operands[0] is operands[-1]:
        return  # which of both comes first cannot be told
    for reflected in (False, True):
        written = operands[::-1] if reflected else operands
        if len(written) == len(node.arguments) and all(a is b for a, b in zip(written, node.arguments, strict=True)):
            form = _Form(node.operation, node.function, reflected, node.dtype)
            _forms[function, torch.get_default_dtype(), kinds] = form
            return


def _result(number: int, function: Any, *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)[number]


def _no_function(*_: Any) -> Any:
    raise Unsupported("a leaf has no function")


def _dtype_and_shape(node: Node) -> tuple[torch.dtype, tuple[int, ...]]:
    """What torch makes of the operands: read off a table, or computed on single ones, or on tensors without storage."""
    if node.direct and node.operation in operations.ELEMENTWISE:
        outcome: Any = apply(node, _ones, lambda tensor: torch.ones((), dtype=tensor.dtype))
    else:
        outcome = _without_values(node)
    if not isinstance(outcome, Tensor):
        raise SeveralResults(node.operation, outcome)
    return outcome.dtype, tuple(outcome.shape[4:])


def _without_values(node: Node) -> Any:
    """The node on tensors without storage, or where torch has no such operation, on ones."""
    try:
        return apply(node, _blank_of, lambda tensor: torch.empty_like(tensor, device="meta"))
    except (RuntimeError, NotImplementedError):
        return apply(node, _ones, lambda tensor: torch.ones(tensor.shape, dtype=tensor.dtype))


@functools.cache
def _blank(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _blank_of(node: Node) -> Tensor:
    return torch.empty((1, 1, 1, 1, *node.shape), dtype=node.dtype, device="meta")


_VARIABLES = {
    variable: Node(number, "index", _no_function, (variable,), {}, variable, variable, torch.int64, (), True)
    for number, variable in enumerate((BATCH, HEAD, QUERY, KEY))
}


@functools.cache
def _one(dtype: torch.dtype) -> Tensor:
    return torch.ones((1, 1, 1, 1), dtype=dtype)


def _ones(node: Node) -> Tensor:
    return _one(node.dtype).reshape((1,) * (4 + len(node.shape))).expand(1, 1, 1, 1, *node.shape)
