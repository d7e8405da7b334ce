"""What a rule is as a function: what a kernel is compiled for, and what may change under a cache.

Rules are closures. Two closures from the same code, which hold tensors of the same kind, compile to one kernel; two
that hold the same unchanged tensors and the same numbers keep the same pairs.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Same:
    """Equal to a Same of the same object only; it keeps the object, so no other takes its identity over."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def tensor_state(tensor: Tensor) -> tuple[object, int]:
    """Identity and version. An inference tensor has no version: its state equals no other."""
    return (object(), 0) if tensor.is_inference() else (Same(tensor), tensor._version)


def rule_state(value: object) -> object:
    """What a rule computes now: its code, and identity and version or value of all it refers to.

    Equal states mean equal results. Read: closures, defaults, functools.partial, globals that are tensors, numbers or
    functions, and attributes of callable objects.
    """
    return _describe(value, _state_of, set())


def kernel_signature(value: object) -> object:
    """What a rule is compiled for: its code and static values; of tensors the kind, of integers nothing.

    Integers become symbols in the kernel after one recompilation, tensors are its inputs. Floats are static: torch
    cannot lower a symbolic float in a rule. Tuples are static too: a shape is a constant of the kernel.
    """
    return _describe(value, _signature_of, set())


def leaves(value: object) -> list[object]:
    """All tensors and plain values a rule refers to, in the order of its code."""
    found: list[object] = []
    _describe(value, found.append, set())
    return found


def _state_of(value: object) -> object:
    if isinstance(value, Tensor):
        return tensor_state(value)
    return (type(value), value) if isinstance(value, _PLAIN) else Same(value)


def _signature_of(value: object) -> object:
    if isinstance(value, Tensor):
        return value.dtype, value.ndim, value.device, value.requires_grad
    if isinstance(value, int) and not isinstance(value, bool):
        return int
    return (type(value), value) if isinstance(value, _PLAIN) else type(value)


_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def _describe(value: Any, leaf: Any, seen: set[int]) -> object:
    """``value`` with its containers and functions opened and ``leaf`` applied to the rest; ends at cycles."""
    if isinstance(value, (Tensor, *_PLAIN)):
        return leaf(value)
    if id(value) in seen:
        return "seen"
    seen = seen | {id(value)}
    if leaf is _signature_of and isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value):
        return tuple((type(item), item) for item in value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_describe(item, leaf, seen) for item in value)
    if isinstance(value, dict):
        return dict, tuple((str(key), _describe(item, leaf, seen)) for key, item in value.items())
    if isinstance(value, functools.partial):
        return functools.partial, _describe((value.func, value.args, value.keywords), leaf, seen)
    if isinstance(value, types.FunctionType):
        return value.__code__, tuple(_describe(item, leaf, seen) for item in _referred(value))
    if isinstance(value, types.MethodType):
        return types.MethodType, _describe((value.__func__, value.__self__), leaf, seen)
    if callable(value) and hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        return type(value), _describe(vars(value), leaf, seen)
    return leaf(value)


def _referred(function: types.FunctionType) -> Iterator[object]:
    """Contents of the closure, defaults, and the globals a rule may compute with."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name of the enclosing function that is assigned later
            yield None
    yield function.__defaults__
    yield function.__kwdefaults__
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (Tensor, *_PLAIN)) or _is_users_function(value):
            yield value


def _is_users_function(value: object) -> bool:
    return isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith("torch.")
