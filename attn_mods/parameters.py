"""What Mask, Score and Recipe share: typed fields, of which some are tensors and some are parts of the same kind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.function_state import rule_state, tensor_state

STATIC_TYPES = (int, float, bool, str, type(None), torch.dtype)


class Parameterised:
    """A frozen dataclass whose fields are static values, tensors or other Parameterised parts.

    ``==`` stays identity; ``key()`` is what caches go by. Instances pickle and deep-copy.

    Attributes:
        constants: Float tensor fields that are computed from other fields, so not learned.
    """

    constants: ClassVar[frozenset[str]] = frozenset()
    _classes: ClassVar[dict[str, type[Parameterised]]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        Parameterised._classes[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def _fields(self) -> Iterator[tuple[str, Any]]:
        for item in fields(self):  # type: ignore[arg-type]  # every concrete subclass is a dataclass
            if item.init:
                yield item.name, getattr(self, item.name)

    def parts(self) -> dict[str, Parameterised]:
        """The fields that are masks, scores or recipes themselves."""
        return {name: value for name, value in self._fields() if isinstance(value, Parameterised)}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors this depends on by name; those of parts are named ``part.field``."""
        found: dict[str, Tensor] = {}
        for name, value in self._fields():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, Parameterised):
                found.update({f"{name}.{inner}": tensor for inner, tensor in value.tensors().items()})
        return found

    def learnable(self) -> frozenset[str]:
        """The names in ``tensors()`` of those that may be trained: float, and no constants."""
        found: set[str] = set()
        for name, value in self._fields():
            if isinstance(value, Tensor) and value.is_floating_point() and name not in self.constants:
                found.add(name)
            elif isinstance(value, Parameterised):
                found.update(f"{name}.{inner}" for inner in value.learnable())
        return frozenset(found)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """A copy with the named tensors (the names of ``tensors()``) in place of its own, checked as at construction.

        Raises:
            ValueError: A name that ``tensors()`` does not have.
        """
        unknown = set(tensors) - set(self.tensors())
        if unknown:
            checks.fail(
                type(self).__name__,
                "with_tensors takes the names that tensors() returns",
                sorted(unknown),
                f"use some of {sorted(self.tensors())}",
            )
        changes: dict[str, Any] = {}
        for name, value in self._fields():
            if isinstance(value, Tensor) and name in tensors:
                changes[name] = tensors[name]
            elif isinstance(value, Parameterised):
                inner = {key[len(name) + 1 :]: t for key, t in tensors.items() if key.startswith(f"{name}.")}
                if inner:
                    changes[name] = value.with_tensors(inner)
        return replace(self, **changes) if changes else self  # type: ignore[type-var]

    def to(self, device: torch.device | str) -> Self:
        """A copy with every tensor on ``device``.

        Raises:
            ValueError: A device that cannot be used here, or one without values for tensors whose values are read.
            TypeError: Something that is no device.
        """
        where = checks.usable_device(type(self).__name__, device, meta=True)
        return self.with_tensors({name: tensor.to(where) for name, tensor in self.tensors().items()})

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with ``change`` of each tensor, which has the same values and so is not checked again."""
        copy = object.__new__(type(self))
        for item in fields(self):  # type: ignore[arg-type]  # as in _fields; torch 2.11 traces no __dict__
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                value = change(value)
            elif isinstance(value, Parameterised):
                value = value.mapped(change)
            object.__setattr__(copy, item.name, value)
        return copy

    @property
    def device(self) -> torch.device | None:
        """The device of its tensors, or None if it has none.

        Raises:
            ValueError: The tensors are on several devices.
        """
        devices = self.devices()
        if len(devices) > 1:
            held = [f"{name} on {tensor.device}" for name, tensor in self.tensors().items()]
            names = ", ".join(held) or " and ".join(sorted(str(device) for device in devices))
            checks.fail(type(self).__name__, "all tensors must be on one device", names, "move it with .to(device)")
        return devices.pop() if devices else None

    def devices(self) -> set[torch.device]:
        """Where its tensors are, and those that users' functions among its parts refer to."""
        found: set[torch.device] = set()
        for _, value in self._fields():
            if isinstance(value, Tensor):
                found.add(value.device)
            elif isinstance(value, Parameterised):
                found |= value.devices()
        return found

    def requires_grad(self) -> bool:
        """Whether one of its tensors requires grad, or one that a user's score_mod among its parts refers to."""
        held = [value for _, value in self._fields()]
        tensors = any(value.requires_grad for value in held if isinstance(value, Tensor))
        return tensors or any(value.requires_grad() for value in held if isinstance(value, Parameterised))

    def sized(self, batch: int | None, heads: int | None) -> Self:
        """A copy whose user's functions stand for this many batches and heads, where they do not state their own.

        Raises:
            ValueError: A function reads an axis of which it states one, and there are more.
        """
        changes: dict[str, Any] = {}
        for name, part in self.parts().items():
            sized = part.sized(batch, heads)
            if sized is not part:
                changes[name] = sized
        return replace(self, **changes) if changes else self  # type: ignore[type-var]

    def key(self) -> tuple[Any, ...]:
        """Class, static fields, identity and version of the tensors: equal keys mean the same mask or score.

        A key keeps its tensors alive, so that no other takes their identity over. Not seen are changes that torch
        does not count, made through ``tensor.data`` or a NumPy view.
        """
        values: list[Any] = [type(self)]
        for name, value in self._fields():
            if isinstance(value, Tensor):
                values.append((name, tensor_state(value)))
            elif isinstance(value, Parameterised):
                values.append((name, value.key()))
            elif isinstance(value, (*STATIC_TYPES, tuple)):
                values.append((name, type(value), value))
            else:
                values.append((name, rule_state(value)))
        return tuple(values)

    def integers(self) -> list[int]:
        """The integers this depends on, in the order of the fields; those of parts in their place."""
        return [number for _, value in self._fields() for number in _integers_in(value)]

    def structure(self) -> str:
        """Classes and static fields as text, without the values of ``tensors()`` and ``integers()``.

        ``from_structure`` inverts it. A compiler may hold an integer as a symbol, which no text can.
        """
        return repr(self._structure())

    def _structure(self) -> tuple[Any, ...]:
        values = tuple((name, *self._described(name, value)) for name, value in self._fields())
        return (f"{type(self).__module__}.{type(self).__qualname__}", values)

    def _described(self, field: str, value: object) -> tuple[str, Any]:
        """What kind of value it is, and the value if it is static."""
        if isinstance(value, Tensor):
            return "tensor", None
        if isinstance(value, Parameterised):
            return "part", value._structure()
        if isinstance(value, tuple) and not any(isinstance(each, (Tensor, Parameterised)) for each in value):
            return "tuple", tuple(self._described(field, each) for each in value)
        if _is_integer(value):
            return "integer", None
        if isinstance(value, torch.dtype):
            return "dtype", str(value).removeprefix("torch.")
        if isinstance(value, float):
            return "float", str(value)
        if isinstance(value, STATIC_TYPES):
            return "static", value
        checks.fail(
            type(self).__name__,
            f"the field {field} must be a number, a text, a tuple or a tensor to be described as text",
            checks.describe(value),
            "build its block_mask outside of the compiled function and pass it in",
            TypeError,
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _integers_in(value: Any) -> list[int]:
    if isinstance(value, Parameterised):
        return value.integers()
    if isinstance(value, tuple):
        return [number for each in value for number in _integers_in(each)]
    return [value] if _is_integer(value) else []


def from_structure(structure: str, tensors: Sequence[Tensor], integers: Sequence[int]) -> Parameterised:
    """The object whose ``structure()``, ``tensors()`` and ``integers()`` are given."""
    return _restore(ast.literal_eval(structure), iter(tensors), iter(integers))


def _restore(structure: tuple[Any, ...], tensors: Iterator[Tensor], integers: Iterator[int]) -> Parameterised:
    class_name, values = structure
    restored = {name: _value(kind, value, tensors, integers) for name, kind, value in values}
    return Parameterised._classes[class_name](**restored)


def _value(kind: str, value: Any, tensors: Iterator[Tensor], integers: Iterator[int]) -> Any:
    if kind == "tensor":
        return next(tensors)
    if kind == "integer":
        return next(integers)
    if kind == "part":
        return _restore(value, tensors, integers)
    if kind == "tuple":
        return tuple(_value(item, inner, tensors, integers) for item, inner in value)
    if kind == "float":
        return float(value)
    return getattr(torch, value) if kind == "dtype" else value
