"""A negative index of a captured tensor counts from its end, in what torch generates for flex_attention on a card.

It does everywhere else in torch. Both generators (seen in 2.11 and 2.13), of Triton kernels and of the FLASH kernel,
leave it out: the kernel reads what lies before the tensor, and the backward of the Triton kernel adds to it. 2.13 sees
to it for the FLASH kernel where it can follow how the index came about.

Counting from the end takes three operations a score, which is left out where no index can be negative: at a position,
and at what a clamp, an absolute value or a remainder makes of any number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
import torch

from attn_mods.backends.mending import is_mended, mended, once, tell_apart_what_is_kept

TAG = "indexes mended by attn_mods"

ARGUMENTS = frozenset({"b", "h", "m", "n"})
"""What a rule's arguments but the score are called in the generators."""

NEVER = frozenset({"abs", "square", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"})
"""Operations whose result is never negative."""

IF_ANY_IS_NOT = frozenset({"maximum", "bitwise_and"})
"""Operations whose result is not negative if one of their arguments is not."""

IF_NONE_IS = frozenset({"minimum", "add", "mul", "floordiv", "truncdiv", "truediv", "floor", "trunc", "identity"})
"""Operations whose result is not negative if none of their arguments is."""

NARROW = (torch.int8, torch.int16)
"""What a larger number may become negative in."""

UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)

FromTheEnd = Callable[[Any, Any, str], Any]
"""(writer, index, size) -> the index, or where it is negative the index plus the size."""


@once  # every call of attention asks
def mend_triton_kernels() -> None:
    """Mend the generator of Triton kernels."""
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    mend_indexes(importlib.import_module("torch._inductor.select_algorithm").ModificationWrapper, _in_triton)
    tell_apart_what_is_kept(TAG)


def mend_indexes(writer: Any, from_the_end: FromTheEnd) -> None:
    """Mend the class that writes what is read of tensors: follow what cannot be negative, mend other indexes."""
    if is_mended(writer.indirect_indexing):
        return
    writer.load = _following_what_is_read(writer.load)
    writer._default = _following_operations(writer._default)
    writer.indirect_indexing = _mending(writer.indirect_indexing, from_the_end)


def _following_what_is_read(original: Callable[..., Any]) -> Callable[..., Any]:
    @mended
    def load(self: Any, name: str, index: Any) -> Any:
        value = original(self, name, index)
        is_unsigned = getattr(value, "dtype", None) in UNSIGNED
        is_not_negative = name in ARGUMENTS if name in self.fixed_inputs else is_unsigned
        if is_not_negative:
            _not_negative(self).add(str(value))
        return value

    return load


def _following_operations(original: Callable[..., Any]) -> Callable[..., Any]:
    @mended
    def default(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = original(self, name, args, kwargs)
        if _gives_none_negative(name, args, lambda argument: _is_not_negative(self, argument)):
            _not_negative(self).add(str(value))
        return value

    return default


def _mending(original: Callable[..., Any], from_the_end: FromTheEnd) -> Callable[..., Any]:
    @mended
    def indirect_indexing(self: Any, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
        if wrap_neg and not isinstance(index, str) and not _is_not_negative(self, index):
            # A size that changes is a symbol, which the kernel has another name for.
            end = self.kernel.kexpr(self.kernel.rename_indexing(sympy.sympify(size)))
            index = from_the_end(self, index, end)
        return original(self, index, size, check, wrap_neg)

    return indirect_indexing


def _gives_none_negative(name: str, args: tuple[Any, ...], is_not_negative: Callable[[Any], bool]) -> bool:
    """Whether no result of an operation is negative, of arguments of which some are not."""
    if name == "constant":
        return bool(args[0] >= 0)
    if name == "index_expr":
        return bool(args[0].is_nonnegative)
    if name == "to_dtype":
        return args[1] not in NARROW and is_not_negative(args[0])
    if name == "remainder":  # has the sign of the divisor
        return is_not_negative(args[1])
    if name == "where":
        return is_not_negative(args[1]) and is_not_negative(args[2])
    if name in IF_ANY_IS_NOT:
        return any(map(is_not_negative, args))
    return name in NEVER or (name in IF_NONE_IS and all(map(is_not_negative, args)))


def _is_not_negative(writer: Any, value: Any) -> bool:
    text = str(value)
    return text in _not_negative(writer) or text.isdecimal()


def _not_negative(writer: Any) -> set[str]:
    """The names of what a writer has written that cannot be negative."""
    names: set[str] = writer.__dict__.setdefault("not_negative", set())
    return names


def _in_triton(writer: Any, index: Any, size: str) -> Any:
    text = f"tl.where({index} < 0, {index} + {size}, {index})"
    return writer.kernel.cse.generate(writer.kernel.compute, text, dtype=index.dtype, shape=index.shape)
