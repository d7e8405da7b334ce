"""What a rule is as a function: what a kernel is compiled for, and what may change under a cache.

Rules are closures. Two closures from the same code, which hold tensors of the same kind, compile to one kernel; two
that hold the same unchanged tensors and the same numbers keep the same pairs.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, range, type(None), torch.dtype, torch.device, torch.layout)
"""Values that change only by being replaced."""

Function = TypeVar("Function", bound=Callable[..., Any])
BY_KIND = "decides_by_kind"


def decides_by_kind(function: Function) -> Function:
    """Mark a function of rules whose branches depend on types, dtypes and dimensions alone, never on a value.

    It must not compute with numbers either, but hand them to tensors' operations or return them as they are.
    """
    function.__dict__[BY_KIND] = True
    return function


class Same:
    """Equal to a Same of the same object only; it keeps the object, so no other takes its identity over."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def tensor_state(tensor: Tensor) -> tuple[object, ...]:
    """Identity and version, also of what torch.utils.swap_tensors may put in its place.

    An inference tensor has no version: its state equals no other.
    """
    return (object(),) if tensor.is_inference() else (Same(tensor), tensor._cdata, tensor._version)


def rule_state(value: object) -> object:
    """What a rule computes now: its code, identity and version or value of all it refers to, and the default dtype.

    Equal states mean equal results. Read are closures, defaults, functools.partial, containers, the attributes of
    objects, and of globals, modules and classes what the code, nested functions included, has names for. What cannot
    be opened, such as a NumPy array, has a state that equals nothing, not even itself a moment later.
    """
    return torch.get_default_dtype(), _describe(value, _state_of, set())


def kernel_signature(value: object) -> object:
    """What a rule is compiled for: its code and static values; of tensors the kind, of integers nothing.

    Integers become symbols in the kernel after one recompilation, tensors are its inputs. Floats are static: torch
    cannot lower a symbolic float in a rule. Tuples are static too: a shape is a constant of the kernel.
    """
    return _describe(value, _signature_of, set())


def branch_signature(value: object) -> object | None:
    """What decides which way a rule goes, but for values on a device: its code, numbers, and of tensors kind and shape.

    None for a rule that refers to what cannot be opened: it may branch on that.
    """
    unopened: list[object] = []

    def branches_by(inside: object) -> object:
        if isinstance(inside, Tensor):
            return inside.dtype, inside.shape, inside.device
        if isinstance(inside, PLAIN):
            return type(inside), inside
        if not _is_fixed(inside):
            unopened.append(inside)
        return Same(inside)

    described = _describe(value, branches_by, set())
    return None if unopened else (torch.get_default_dtype(), described)


def leaves(value: object) -> list[object]:
    """All tensors and plain values a rule refers to, in the order of its code."""
    found: list[object] = []
    _describe(value, found.append, set())
    return found


def tensors_of(value: object) -> list[Tensor]:
    """All tensors a rule refers to."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


# Asked while a compiler traces a call too, and answered outside of the graph.
@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch's has no types
def devices_of(value: object) -> tuple[str, ...]:
    """The devices of all tensors a rule refers to."""
    return tuple(sorted({str(tensor.device) for tensor in tensors_of(value)}))


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # torch's has no types
def requires_grad(value: object) -> bool:
    """Whether a tensor that a rule refers to requires grad."""
    return any(tensor.requires_grad for tensor in tensors_of(value))


def _state_of(value: object) -> object:
    if isinstance(value, Tensor):
        return tensor_state(value)
    if isinstance(value, PLAIN):
        return type(value), value
    return Same(value) if _is_fixed(value) else object()


def _signature_of(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.ndim, value.device, value.requires_grad
    if isinstance(value, int) and not isinstance(value, bool):
        return int
    if isinstance(value, PLAIN):
        return type(value), value
    return Same(value) if _is_fixed(value) else type(value)


_LEAVES = (Tensor, *PLAIN)
_PLAIN, _TENSORS = frozenset(PLAIN), (Tensor, torch.nn.Parameter)
_MAKING = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__repr__", "__del__")
"""Methods that no rule calls while it computes."""
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_TORCH_OPERATORS = (*_BUILT_IN, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_FIELD_OF_A_NAMED_TUPLE = type(NamedTuple("_Pair", [("first", int)]).first)  # type: ignore[attr-defined]
_NAMED = (types.ModuleType, types.FunctionType, type)
_NO_STATE = ("torch", "builtins", "abc", "collections", "enum")


def _is_fixed(value: object) -> bool:
    """Whether identity alone says what it computes: torch's and Python's own functions, classes and modules."""
    if isinstance(value, (*_TORCH_OPERATORS, _FIELD_OF_A_NAMED_TUPLE)):
        return True
    if not isinstance(value, _NAMED):
        return False
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return (home or "").partition(".")[0] in _NO_STATE


def _describe(value: Any, leaf: Any, seen: set[int], names: tuple[str, ...] = ()) -> object:
    """``value`` opened, and ``leaf`` applied to what has no inside; ends at cycles.

    Args:
        value: What to describe.
        leaf: What becomes of tensors, plain values and what cannot be opened.
        seen: Identities of all that ``value`` is inside of.
        names: What the code that refers to ``value`` has names for.
    """
    if _has_no_inside(value) or _is_fixed(value):
        return leaf(value)
    if id(value) in seen:
        return "seen"
    seen = seen | {id(value)}

    def inside(items: Iterable[object], names: tuple[str, ...] = names) -> tuple[object, ...]:
        # Most items have no inside, and most of the time would go into finding that out by a call.
        return tuple([leaf(i) if _has_no_inside(i) else _describe(i, leaf, seen, names) for i in items])

    def with_attributes(described: object) -> object:
        """What an instance of a class derived from a plain one has besides, or a tensor or a partial was given."""
        own = dict(vars(value)) if hasattr(value, "__dict__") else {}
        found = _named(type(value), (*names, *_operators(value.__class__)))
        # torch's compiler notes things of its own on tensors.
        found |= {name: own[name] for name in names if name in own} if isinstance(value, Tensor) else own
        return (described, tuple(found), inside(found.values())) if found else described

    if isinstance(value, _LEAVES):
        return with_attributes(leaf(value))
    if leaf is _signature_of and isinstance(value, tuple) and all(type(item) in PLAIN for item in value):
        return with_attributes(tuple((type(item), item) for item in value))
    if isinstance(value, (tuple, list)):
        return with_attributes((type(value), inside(value)))
    if isinstance(value, dict):
        return with_attributes((type(value), tuple(str(key) for key in value), inside(value.values())))
    if isinstance(value, functools.partial):
        return with_attributes((functools.partial, inside((value.func, value.args, value.keywords))))
    if isinstance(value, types.FunctionType):
        read = _names(value.__code__)
        seen_from_inside = (*_referred(value, read), *vars(value).values(), *_unseen(value.__code__))
        return value.__code__, inside(seen_from_inside, tuple(dict.fromkeys(names + read)))
    if isinstance(value, types.MethodType):
        return types.MethodType, inside((value.__func__, value.__self__))
    if isinstance(value, (property, types.DynamicClassAttribute)):
        return property, inside((value.fget,))
    if isinstance(value, (type, types.ModuleType)):
        found = _named(type(value), names) | _named(value, names)
        return Same(value), tuple(found), inside(found.values())
    if _is_open(value):
        found = _named(type(value), (*names, *_operators(value.__class__))) | vars(value)
        return type(value), tuple(found), inside(found.values())
    return leaf(value)


def _has_no_inside(value: object) -> bool:
    """Whether it is a plain value, or a tensor that nobody gave attributes: itself, no instance of a derived class."""
    kind = type(value)
    return kind in _PLAIN or (kind in _TENSORS and not value.__dict__)


@functools.lru_cache(maxsize=1024)
def _operators(kind: type) -> tuple[str, ...]:
    """The methods of a class that are called without being named: operators, calls, look-ups of attributes."""
    classes = (each for each in kind.__mro__ if not _is_fixed(each))
    found = (name for each in classes for name, held in vars(each).items() if isinstance(held, types.FunctionType))
    return tuple(dict.fromkeys(name for name in found if name.startswith("__") and name not in _MAKING))


def _is_open(value: object) -> bool:
    """Whether its attributes are all there is to an object."""
    if isinstance(value, functools._lru_cache_wrapper):
        return False  # what it remembers is out of sight
    try:
        elsewhere = hasattr(type(value), "__slots__") or hasattr(value, "__array_interface__")
    except Exception:  # a __getattr__ of its own may raise whatever it likes
        return False
    return hasattr(value, "__dict__") and not elsewhere


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Globals and attributes that code reads, inside nested functions and comprehensions too."""
    nested = (name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant))
    return tuple(dict.fromkeys((*code.co_names, *nested)))


_LOOKS_UP_BY_TEXT = frozenset({"eval", "exec", "getattr", "globals", "locals", "vars", "__import__", "__dict__"})


class _Unseen:
    """What code reads in ways that cannot be followed."""

    __slots__ = ()


@functools.lru_cache(maxsize=1024)
def _unseen(code: types.CodeType) -> tuple[_Unseen, ...]:
    """One of these for code that imports, or looks names up by their text."""
    imports = any(instruction.opname == "IMPORT_NAME" for instruction in dis.get_instructions(code))
    return (_Unseen(),) if imports or _LOOKS_UP_BY_TEXT.intersection(code.co_names) else ()


def _referred(function: types.FunctionType, names: tuple[str, ...]) -> Iterator[object]:
    """Contents of the closure, defaults, and the globals a rule may compute with."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name of the enclosing function that is assigned later
            yield None
    yield function.__defaults__
    yield function.__kwdefaults__
    for name in names:
        if name in function.__globals__ and not _is_fixed(function.__globals__[name]):
            yield function.__globals__[name]


def _named(owner: type | types.ModuleType, names: tuple[str, ...]) -> dict[str, object]:
    """The attributes of a module or a class that code with these names reads."""
    owners: tuple[Any, ...] = owner.__mro__[::-1] if isinstance(owner, type) else (owner,)
    held = {name: value for each in owners if not _is_fixed(each) for name, value in vars(each).items()}
    return {name: held[name] for name in names if name in held and not _is_fixed(held[name])}
