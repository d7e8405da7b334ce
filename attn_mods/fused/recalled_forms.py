"""Skip the recording of a rule whose code was recorded before: what it does is known, only what it holds is new.

Recording a rule costs more than launching its kernels. It can be left out for *straight* code, which has no branch and
no loop and reads only its arguments, numbers, tensors, other straight functions and torch's operations. Such code does
the same whatever the numbers and tensors are, if no number is computed with before it meets an index: that is watched
when the code is first recorded, with marked numbers and tensors in place of those it holds. All other code is recorded
anew for every mask.

The same must hold of what records: of a number it may ask no more than the key says (its sign, whether it is small),
or the rule is not recalled (`_makes_constants`, `_meets_narrow_numbers`, literals). Marks refuse to be computed with
there.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attn_mods.function_state import BY_KIND
from attn_mods.fused.form import SMALL, Call, Index, Literal, Step, Table, UnfitHere, form_of, reaches_too_far
from attn_mods.tiles import operations
from attn_mods.tiles.graph import Graph, numbers_in, tensors_in
from attn_mods.tiles.grid import Grid
from attn_mods.tiles.precedence import signs_of_mixed_joins
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import trace

_STRAIGHT = frozenset(
    {
        "BINARY_OP",
        "BINARY_SUBSCR",
        "BUILD_TUPLE",
        "CACHE",
        "CALL",
        "CALL_KW",
        "COMPARE_OP",
        "COPY",
        "COPY_FREE_VARS",
        "KW_NAMES",
        "LOAD_ATTR",
        "LOAD_CONST",
        "LOAD_DEREF",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "LOAD_FAST_LOAD_FAST",
        "LOAD_GLOBAL",
        "LOAD_METHOD",
        "LOAD_SMALL_INT",
        "NOP",
        "PRECALL",
        "PUSH_NULL",
        "RESUME",
        "RETURN_VALUE",
        "STORE_FAST",
        "STORE_FAST_LOAD_FAST",
        "STORE_FAST_STORE_FAST",
        "SWAP",
        "UNARY_INVERT",
        "UNARY_NEGATIVE",
    }
)
"""Instructions of straight code. One that a later Python adds is not straight, and costs time only."""

# Attributes that are operations on values or dtypes; a shape, say, is a number that would go unwatched.
_ATTRIBUTES = (
    frozenset(operations.CANONICAL) | operations.CREATION | {"int64", "int32", "int16", "int8", "uint8", "bool", "long"}
)

_HOLD_SMALL_NUMBERS = (torch.int64, torch.int32, torch.bool)
_STATIC = (bool, float, str, type(None), torch.dtype)
_MOST = 1024


class _Uneven(Exception):
    """The rule may do something else with other values."""


class _Template(NamedTuple):
    """A form, and where the values of a call come from among the *leaves*: the numbers and tensors the rule holds.

    Attributes:
        form: The form.
        integers: Of each integer a leaf, or a leaf and the axis whose size it is, or neither and the number.
        tables: Of each tensor the leaf.
        inside: Variable, leaf and axis of indices that must stay in their tables.
    """

    form: tuple[Step, ...]
    integers: tuple[tuple[int | None, int | None, int], ...]
    tables: tuple[int, ...]
    inside: tuple[tuple[int, int, int], ...]


_templates: dict[Hashable, _Template | None] = {}
_NEVER_SEEN: Any = object()


def recall(rule: Rule, grid: Grid) -> Call | None:
    """The form of a rule and its values, or None if the rule must be recorded."""
    leaves: list[Any] = []
    try:
        key = _opened(rule, leaves), torch.device(grid.device).type, torch.get_default_dtype()
    except (_Uneven, RecursionError):  # a rule may hold itself
        return None
    template = _templates.get(key, _NEVER_SEEN)
    if template is _NEVER_SEEN:
        if len(_templates) >= _MOST:
            _templates.clear()
        try:
            template = _templates[key] = _template(rule, leaves, grid)
        except UnfitHere:
            return None
    return None if template is None else _filled(template, leaves, grid)


def _filled(template: _Template, leaves: list[Any], grid: Grid) -> Call | None:
    """The call of a template with the leaves of a rule; None where only torch can say what is wrong."""
    if reaches_too_far(grid):
        return None
    for variable, leaf, axis in template.inside:
        first = grid.offset(variable)
        if first < 0 or first + grid.extent(variable) > leaves[leaf].shape[axis]:
            return None
    tables = [leaves[leaf] for leaf in template.tables]
    device = torch.device(grid.device).type
    for table in tables:
        if table.device.type != device or not table.is_contiguous() or not table.numel():
            return None
    integers: list[int] = [
        number if leaf is None else leaves[leaf] if axis is None else leaves[leaf].shape[axis]
        for leaf, axis, number in template.integers
    ]
    return Call(template.form, integers, tables)


def _opened(function: Any, leaves: list[Any]) -> Hashable:
    """What code does apart from its leaves, which are collected in the order of reading."""
    if type(function) is not types.FunctionType or function.__defaults__ or function.__kwdefaults__:
        raise _Uneven
    code = function.__code__
    names = _globals_of(code)
    if names is None:
        raise _Uneven
    parts: list[Hashable] = [code]
    try:
        for cell in function.__closure__ or ():
            parts.append(_part(cell.cell_contents, leaves))
    except ValueError:  # a name that is assigned later
        raise _Uneven from None
    for name in names:
        parts.append(_part(_global(function, name), leaves))
    return tuple(parts)


def _global(function: types.FunctionType, name: str) -> Any:
    if name not in function.__globals__:
        raise _Uneven  # a function of Python's own, such as min or range
    return function.__globals__[name]


def _part(value: Any, leaves: list[Any]) -> Hashable:
    kind = type(value)
    if kind is Tensor:
        leaves.append(value)
        return value.dtype, value.dim()
    if kind is int:
        if not -SMALL < value < SMALL:
            return "large", value
        leaves.append(value)
        return "int", (value > 0) - (value < 0)
    if kind is types.FunctionType:
        return value if BY_KIND in value.__dict__ else _opened(value, leaves)
    if value is torch:
        return "torch"
    if kind in _STATIC:
        return kind, value
    raise _Uneven


@functools.lru_cache(maxsize=_MOST)
def _globals_of(code: types.CodeType) -> tuple[str, ...] | None:
    """The globals that straight code reads; None for other code."""
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _STRAIGHT:
            return None
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval not in _ATTRIBUTES:
            return None
        if instruction.opname == "LOAD_GLOBAL":
            names.append(instruction.argval)
    return tuple(dict.fromkeys(names))


# Making a template: the rule is recorded with marked leaves.


class _Marked(int):
    """A number the rule holds. The rule may hand it to an operation; it may neither compute with it nor compare it.

    What records may compare it, and must not compute with it either: its result would pass for a constant.
    """

    leaf: int
    codes: frozenset[types.CodeType]


_NOT_WATCHED = frozenset({"__new__", "__doc__", "__getattribute__", "__hash__"})
_COMPARES = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__index__", "__int__"})


def _watched(name: str) -> Callable[..., Any]:
    own = getattr(int, name)

    def watched(self: _Marked, *others: Any) -> Any:
        if name in _COMPARES and sys._getframe(1).f_code not in self.codes:
            return own(self, *others)
        if any(isinstance(other, Tensor) for other in others):
            return NotImplemented  # it is the tensor's operation
        raise _Uneven

    return watched


for _name in vars(int):
    if _name.startswith("__") and _name not in _NOT_WATCHED:
        setattr(_Marked, _name, _watched(_name))


def _template(rule: Rule, leaves: list[Any], grid: Grid) -> _Template | None:
    """Record a rule with marked leaves; None if one is computed with, or the rule has no form.

    Raises:
        UnfitHere: It may have one with other lengths and tables.
    """
    codes = frozenset(_codes(rule))
    marks = [_marked(leaf, number, codes) for number, leaf in enumerate(leaves)]
    tensors = {id(mark): number for number, mark in enumerate(marks) if isinstance(mark, Tensor)}
    try:
        unread = iter(marks)
        graph = trace(_rebuilt(rule, unread), grid)
        if next(unread, None) is not None:
            raise _Uneven  # what was collected is not what was replaced
        if _makes_constants(graph) or _meets_narrow_numbers(graph) or signs_of_mixed_joins(graph):
            return None  # what is recorded again is warned of again
        call = form_of(graph, grid)
        return _of_call(call, tensors)
    except UnfitHere:
        raise
    except Exception:  # uneven, unfit, or wrong: then the rule is recorded again, unmarked, and raises its own error
        return None


def _marked(leaf: Any, number: int, codes: frozenset[types.CodeType]) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    mark = _Marked(leaf)
    mark.leaf, mark.codes = number, codes
    return mark


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function and of those it holds."""
    yield function.__code__
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += [_global(function, name) for name in _globals_of(function.__code__) or ()]
    for value in held:
        if _is_opened(value):
            yield from _codes(value)


def _is_opened(value: Any) -> bool:
    return type(value) is types.FunctionType and BY_KIND not in value.__dict__


def _rebuilt(function: Any, marks: Iterator[Any]) -> Any:
    """The function with marks in place of its leaves, in the order in which `_opened` collects them."""

    def replaced(value: Any) -> Any:
        if type(value) is Tensor or (type(value) is int and -SMALL < value < SMALL):
            return next(marks)
        return _rebuilt(value, marks) if _is_opened(value) else value

    closure = tuple(types.CellType(replaced(cell.cell_contents)) for cell in function.__closure__ or ())
    space = {name: replaced(_global(function, name)) for name in _globals_of(function.__code__) or ()}
    space["__builtins__"] = builtins
    return types.FunctionType(function.__code__, space, function.__name__, None, closure or None)


def _makes_constants(graph: Graph) -> bool:
    """Whether a number, or that of a tensor, became part of a constant such as `new_full` makes."""
    return any(
        isinstance(value, (_Marked, Tensor))
        for node in graph.nodes
        if node.operation in operations.CREATION
        for values_in in (numbers_in, tensors_in)
        for value in values_in((node.arguments, node.keywords))
    )


def _meets_narrow_numbers(graph: Graph) -> bool:
    """Whether a number meets a dtype that does not hold all small ones: what torch makes of it depends on the number.

    All else that a number decides about a rule is its sign, whether it is small, and what is read literally.
    """
    return any(
        isinstance(number, _Marked)
        for node in graph.nodes
        if any(operand.dtype not in _HOLD_SMALL_NUMBERS for operand in (node, *node.operands()))
        for number in numbers_in((node.arguments, node.keywords))
    )


def _of_call(call: Call, tensors: dict[int, int]) -> _Template:
    """The template of a call with marked values."""
    tables = []
    for captured in call.tables:
        if id(captured) not in tensors:
            raise _Uneven  # computed by the rule, or copied
        tables.append(tensors[id(captured)])
    origins: dict[int, tuple[int | None, int | None, int]] = {}
    inside: list[tuple[int, int, int]] = []
    for step in call.form:
        if any(isinstance(operand, Literal) and isinstance(operand.value, _Marked) for operand in step.operands):
            raise _Uneven
        if step.operation != "lookup":
            continue
        table = step.operands[0]
        assert isinstance(table, Table)
        for axis, index in enumerate(step.operands[1:]):
            assert isinstance(index, Index)
            if isinstance(index.value, Literal):
                raise _Uneven  # whether it is inside depends on the table
            origins[index.size] = tables[table.place], axis, 0
            if index.inside:
                inside.append((call.form[index.value.place].dependence, tables[table.place], axis))
    for place, value in enumerate(call.integers):
        if isinstance(value, _Marked):
            origins[place] = value.leaf, None, 0
    integers = tuple(origins.get(place, (None, None, value)) for place, value in enumerate(call.integers))
    return _Template(call.form, integers, tuple(tables), tuple(inside))
