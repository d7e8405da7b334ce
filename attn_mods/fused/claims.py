"""The joint tier of a form as one straight-line program on the values of a tile: the calculus, run on symbols.

The operations of `tiles` compute intervals with torch; here their operands are symbols, and what they do is recorded.
So the program claims what the calculus claims, by its own text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_mods.fused.form import SMALL, Literal, Number, Operand, Plain, Result, Step, Table, Unfit

# The modules that fill the table of joint operations.
from attn_mods.tiles import boolean, comparison, division, interval  # noqa: F401
from attn_mods.tiles.graph import Node
from attn_mods.tiles.grid import KEY, POSITIONS, QUERY
from attn_mods.tiles.joint import Derived, evaluate_joint
from attn_mods.tiles.leaves import USE_CONNECTED
from attn_mods.tiles.trace import Recorder, Symbol
from attn_mods.tiles.values import Bounds, Interval, Truth, Value

# Assumed of numbers that only the device knows where arithmetic meets them; tiles on which it fails are unknown.
_ASSUMED = {torch.int64: SMALL, torch.int32: 1 << 24}

# Comparisons and selections cannot overflow, so nothing need be assumed of what they alone read.
_NEVER_OVERFLOW = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "minimum", "maximum", "clamp", "where", "same"})

# Operations on tables that the calculus answers from tables of its own.
_ON_TABLES = frozenset({"lookup", "isin", "bucketize", "searchsorted"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that depends on one position at most and that the joint tier reads.

    Attributes:
        place: Its step.
        variable: QUERY, KEY, or 0 for neither.
        parts: Names of what the leaf kernel reduces it to on a tile, in the order of storing: "low", "high" and maybe
            "connected" of a number, "every" and "some" of a boolean. Of a leaf of neither variable the "value" alone.
    """

    place: int
    variable: int
    parts: tuple[str, ...]

    def name(self, part: str) -> str:
        """The name of a part in the program."""
        return f"leaf{self.place}_{part}"


@dataclass(frozen=True, slots=True)
class Claims:
    """The program.

    Attributes:
        leaves: What it reads.
        nodes: Its operations in order; an "input" is named by its only argument.
        every: True where the rule keeps every position of the tile for certain: a node, or a constant.
        some: False where it keeps none for certain.
        mixed: True where it keeps some and drops some for certain.
    """

    leaves: tuple[Leaf, ...]
    nodes: tuple[Node, ...]
    every: Node | bool
    some: Node | bool
    mixed: Node | bool


def claims_of(form: Sequence[Step]) -> Claims:
    """Run the joint tier of a form on symbols.

    Raises:
        Unfit: An operation that needs tables of its own, or nothing would be known of any tile.
    """
    return _Claimer(form).claims()


class _TileRecorder(Recorder):
    """Records what happens to values of tiles, which have four lead axes."""

    def __init__(self) -> None:
        super().__init__("claims", torch.device("cpu"))
        self.nodes: list[Node] = []

    def symbol(self, node: Node) -> Symbol:
        """The tensor an operation of the calculus holds for a node."""
        symbol = torch.empty((1, 1, 1, 1), dtype=node.dtype, device="meta").as_subclass(Symbol)
        symbol.node, symbol.recorder = node, self
        self.nodes.append(node)
        return symbol

    def input(self, name: str, dtype: torch.dtype) -> Symbol:
        """The symbol of a value that the kernel has under a name."""
        node = Node(next(self.numbers), "input", _no_function, (name,), {}, 0, 0, dtype, (), True)
        return self.symbol(node)


class _Claimer:
    def __init__(self, form: Sequence[Step]) -> None:
        self.form = form
        self.recorder = _TileRecorder()
        self.leaves: dict[int, Leaf] = {}
        self.values: dict[int, Value] = {}
        self.safe: Any = True
        joint = [step for step in form if step.dependence & POSITIONS == POSITIONS]
        self.use_connected = any(step.operation in USE_CONNECTED for step in joint)
        self.in_arithmetic = {
            operand.place
            for step in joint
            if step.operation not in _NEVER_OVERFLOW and step.dtype != torch.bool
            for operand in step.operands
            if isinstance(operand, Result)
        }

    def claims(self) -> Claims:
        root = len(self.form) - 1
        for place, step in enumerate(self.form):
            if step.dependence & POSITIONS == POSITIONS:
                self.values[place] = self.joint(place, step)
        truth = self.values[root] if root in self.values else self.leaf(root)
        if not isinstance(truth, Truth):
            raise Unfit("a result that is no boolean")
        every, some, mixed = truth.every, truth.some, truth.mixed
        if self.safe is not True:
            every, some = every & self.safe, some | ~self.safe
            mixed = mixed & self.safe if isinstance(mixed, Tensor) else (self.safe if mixed else False)
        outcome = [_node(value) for value in (every, some, mixed)]
        return Claims(tuple(self.leaves.values()), tuple(self.recorder.nodes), *outcome)

    def joint(self, place: int, step: Step) -> Value:
        """The value of a joint step, by the operations of the calculus."""
        if step.operation in _ON_TABLES:
            raise Unfit(f"{step.operation} at an index of both positions")
        known: dict[int, Value] = {}
        arguments = [self.argument(step, operand, known) for operand in step.operands]
        split = len(arguments) - len(step.keywords)
        keywords = dict(zip(step.keywords, arguments[split:], strict=True))
        node = Node(
            place,
            step.operation,
            FUNCTIONS.get(step.operation, _no_function),
            tuple(arguments[:split]),
            keywords,
            step.dependence,
            step.dependence,
            step.dtype,
            (),
            True,
        )
        return evaluate_joint(node, lambda operand: known[operand.number], torch.device("cpu"), Derived())

    def argument(self, step: Step, operand: Operand, known: dict[int, Value]) -> Any:
        """An argument as the calculus takes it; of what has a value a node with that value is made."""
        if isinstance(operand, (Literal, Plain)):
            return operand.value
        if isinstance(operand, Result):
            value = self.values[operand.place] if operand.place in self.values else self.leaf(operand.place)
            dtype, dependence = self.form[operand.place].dtype, self.form[operand.place].dependence
        elif isinstance(operand, Number):
            value, dtype, dependence = self.number(operand), torch.int64, 0
        elif isinstance(operand, Table):
            value, dtype, dependence = self.fixed(f"table{operand.place}", operand.dtype, True), operand.dtype, 0
        else:
            raise Unfit("an index outside of a lookup")
        node = Node(len(known), "value", _no_function, (), {}, dependence, dependence, dtype, (), True)
        known[node.number] = value
        return node

    def number(self, number: Number) -> Interval:
        """A number of the call: of its size only the sign is known."""
        value = self.recorder.input(f"number{number.place}", torch.int64)
        bounds = ((1 - SMALL, -1), (0, 0), (1, SMALL - 1))[number.sign + 1]
        return Interval(value, value, torch.int64, bounds, True, True)

    def leaf(self, place: int) -> Value:
        """The value of a step that depends on one position at most."""
        if place not in self.values:
            self.values[place] = self.new_leaf(place)
        return self.values[place]

    def new_leaf(self, place: int) -> Value:
        step = self.form[place]
        variable = step.dependence & POSITIONS
        if not variable:
            self.leaves[place] = Leaf(place, 0, ("value",))
            return self.fixed(self.leaves[place].name("value"), step.dtype, place in self.in_arithmetic)
        if step.operation == "index":
            low, high = (self.recorder.input(f"{_side(variable)}_{end}", torch.int64) for end in ("first", "last"))
            return Interval(low, high, torch.int64, (1 - SMALL, SMALL - 1), True, True)
        parts: tuple[str, ...] = ("low", "high", "connected") if self.use_connected else ("low", "high")
        parts = ("every", "some") if step.dtype == torch.bool else parts
        leaf = self.leaves[place] = Leaf(place, variable, parts)
        if step.dtype == torch.bool:
            every, some = (self.recorder.input(leaf.name(part), torch.bool) for part in parts)
            return Truth(every, some, some & ~every)
        low, high = (self.recorder.input(leaf.name(part), torch.int64) for part in parts[:2])
        connected = self.recorder.input(leaf.name("connected"), torch.bool) if self.use_connected else False
        bounds = self.bounds(low, high, step.dtype, place in self.in_arithmetic)
        return Interval(low, high, step.dtype, bounds, True, connected)

    def fixed(self, name: str, dtype: torch.dtype, in_arithmetic: bool) -> Value:
        """A value that is the same on the whole tile."""
        if dtype == torch.bool:
            truth = self.recorder.input(name, torch.bool)
            return Truth(truth, truth)
        value = self.recorder.input(name, torch.int64)
        return Interval(value, value, dtype, self.bounds(value, value, dtype, in_arithmetic), True, True)

    def bounds(self, low: Tensor, high: Tensor, dtype: torch.dtype, in_arithmetic: bool) -> Bounds:
        """Bounds of a number that only the device knows; where arithmetic could overflow, assumed and checked there."""
        most = _ASSUMED.get(dtype)
        if not in_arithmetic or most is None:
            limits = torch.iinfo(dtype)
            return limits.min, limits.max
        safe = (low >= -most) & (high <= most)
        self.safe = safe if self.safe is True else self.safe & safe
        return -most, most


def _side(variable: int) -> str:
    return {QUERY: "q", KEY: "kv"}[variable]


def _node(value: Any) -> Node | bool:
    """The node of an outcome; what is none of a symbol's is a constant."""
    if isinstance(value, Symbol):
        return value.node
    return bool(value)


def _no_function(*_: Any) -> Any:
    raise Unfit("a step without a function of its own")


# The functions that operations of the calculus apply as they are.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "relu": torch.relu,
}
