"""The form of a recorded rule: all that its kernels are generated from; and apart from it the values of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_mods.tiles import operations
from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, Grid
from attn_mods.tiles.pointwise import apply

DTYPES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})

# Operations whose meaning depends on the very number: it becomes part of the form.
_READ_LITERALLY = frozenset({"pow", "shift_left", "shift_right", "and", "or", "xor"})

# Numbers beyond could overflow int64 where they meet others, so their value becomes part of the form.
SMALL = 1 << 31

# Positions are counted below it, so that their sums and differences with small numbers fit.
_MOST_POSITIONS = 1 << 30


class Unfit(Exception):
    """The rule does what no kernel is generated for."""


class UnfitHere(Unfit):
    """These lengths, or these tables, are such that none is used; other ones may have one."""


# The parts of a form are tuples, cheap to make and to compare, since one is made for every mask. They carry their kind
# because tuples of equal fields are equal.


class Result(NamedTuple):
    """The value of the step at a place of the form."""

    place: int
    kind: str = "result"


class Number(NamedTuple):
    """An integer argument: its place among them, and its sign (-1, 0 or 1), which a divisor must have."""

    place: int
    sign: int
    kind: str = "number"


class Table(NamedTuple):
    """A contiguous tensor argument: its place among them, and its dtype."""

    place: int
    dtype: torch.dtype
    kind: str = "table"


class Literal(NamedTuple):
    """A constant of the form."""

    value: int | bool
    type: type
    kind: str = "literal"


class Plain(NamedTuple):
    """What is no number: a dtype, or None."""

    value: torch.dtype | None
    kind: str = "plain"


class Index(NamedTuple):
    """An index into a table: where the size of its axis is among the integers, and whether it is known to be inside."""

    value: Result | Literal | Table
    size: int
    inside: bool
    kind: str = "index"


Operand = Result | Number | Table | Literal | Plain | Index


class Step(NamedTuple):
    """One node.

    Attributes:
        operation: Canonical name; "index" for a variable (its bit is then a `Literal`), "literal" for a constant.
        dtype: Of its value.
        operands: The arguments; a lookup has its `Table` and one `Index` an axis.
        keywords: Names of the last operands that were given by name.
        dependence: Variables the value depends on.
    """

    operation: str
    dtype: torch.dtype
    operands: tuple[Operand, ...]
    keywords: tuple[str, ...]
    dependence: int


_VARIABLES = {
    variable: Step("index", torch.int64, (Literal(variable, int),), (), variable)
    for variable in (BATCH, HEAD, QUERY, KEY)
}


class Call(NamedTuple):
    """A form, and the values it is called with this time."""

    form: tuple[Step, ...]
    integers: list[int]
    tables: list[Tensor]


def form_of(graph: Graph, grid: Grid) -> Call:
    """The form of a recorded rule on a grid.

    Raises:
        Unfit: An operation, a dtype or a size that no kernel is generated for.
    """
    if reaches_too_far(grid):
        raise UnfitHere("positions beyond 2 ** 30")
    reader = _Reader(grid)
    return Call(tuple([reader.step(node) for node in graph.nodes]), reader.integers, reader.tables)


def reaches_too_far(grid: Grid) -> bool:
    """Whether sums of positions and small numbers might overflow."""
    reach = max(abs(int(grid.q_offset)) + grid.q_len, abs(int(grid.kv_offset)) + grid.kv_len)
    return reach >= _MOST_POSITIONS


class _Reader:
    """Reads the nodes in order and collects the values."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.device_type = torch.device(grid.device).type
        self.places: dict[int, int] = {}
        self.integers: list[int] = []
        self.tables: list[Tensor] = []

    def step(self, node: Node) -> Step:
        """The step of a node."""
        operation, dtype = node.operation, node.dtype
        self.places[node.number] = len(self.places)
        if operation == "index":
            return _VARIABLES[node.arguments[0]]
        if node.shape or dtype not in DTYPES:
            raise Unfit(f"{operation} of {dtype} with trailing axes {node.shape}")
        if operation in operations.CREATION or operation == "blank":
            return Step("literal", dtype, (_created(node),), (), 0)
        if operation == "captured":
            return Step("same", dtype, (self.operand(node.arguments[0], False),), (), 0)
        if not node.direct:
            raise Unfit(f"{operation} in a form that broadcasting does not compute")
        if operation == "lookup":
            return Step(operation, dtype, self.lookup(node), (), node.dependence)
        literally = operation in _READ_LITERALLY
        operands = [self.operand(argument, literally) for argument in node.arguments]
        if node.keywords:
            operands += [self.operand(value, literally) for value in node.keywords.values()]
        return Step(operation, dtype, tuple(operands), tuple(node.keywords), node.dependence)

    def operand(self, value: Any, literally: bool) -> Operand:
        """An operand of an elementwise operation."""
        if type(value) is Node:
            return Result(self.places[value.number])
        if type(value) is bool:
            return Literal(value, bool)
        if isinstance(value, int):
            if literally or not -SMALL < value < SMALL:
                return Literal(value, int)
            self.integers.append(value)
            return Number(len(self.integers) - 1, (value > 0) - (value < 0))
        if isinstance(value, Tensor) and not value.dim():
            return self.table(value)
        if value is None or isinstance(value, torch.dtype):
            return Plain(value)
        raise Unfit(f"an operand of type {type(value).__name__}")

    def lookup(self, node: Node) -> tuple[Operand, ...]:
        """The table of a lookup and its indices."""
        table: Tensor = node.arguments[0]
        indices = node.arguments[1:]
        if len(indices) != table.dim():
            raise Unfit("a lookup that does not give one number a position")
        read: list[Operand] = [self.table(table)]
        for index, size in zip(indices, table.shape, strict=True):
            self.integers.append(size)
            read.append(self.index(index, size, len(self.integers) - 1))
        return tuple(read)

    def index(self, index: Any, size: int, place: int) -> Index:
        """An index; torch is left to raise on one that is a variable and leaves its table."""
        if isinstance(index, int):
            if not 0 <= index < size:
                raise Unfit("a constant index that is not inside its table")
            return Index(Literal(index, int), place, True)
        inside = type(index) is Node and index.operation == "index"
        if inside:
            first = self.grid.offset(index.arguments[0])
            if first < 0 or first + self.grid.extent(index.arguments[0]) > size:
                raise UnfitHere("an index that leaves its table")
        value = self.operand(index, False)
        if not isinstance(value, (Result, Table)):
            raise Unfit("an index that is no number")
        return Index(value, place, inside)

    def table(self, table: Tensor) -> Table:
        """A tensor argument."""
        if table.dtype not in DTYPES:
            raise Unfit(f"a captured tensor of {table.dtype} on {table.device}")
        if table.device.type != self.device_type or not table.numel():
            raise UnfitHere(f"a captured tensor of {table.dtype} on {table.device}, of {table.numel()} numbers")
        self.tables.append(table if table.is_contiguous() else table.contiguous())
        return Table(len(self.tables) - 1, table.dtype)


def _created(node: Node) -> Literal:
    """The value of `new_ones` and its kin, the same everywhere."""
    if node.operation == "blank":
        return Literal(0, int)
    made = apply(node, lambda blank: torch.zeros((1, 1, 1, 1), dtype=blank.dtype))
    if made.numel() != 1 or made.device.type != "cpu":
        raise Unfit(f"{node.operation} of more than one number")
    value = bool(made) if made.dtype == torch.bool else int(made)
    return Literal(value, type(value))
