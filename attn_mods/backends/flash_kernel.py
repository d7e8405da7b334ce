"""What torch's generator of code for the FLASH kernel of flex_attention lacks (2.11, most not 2.13), mended beforehand.

It has no maximum and no minimum, of which clamps are made: they are spelled as a choice. A number, which is what
``h * 0`` becomes, can be neither an index of a captured tensor nor brought to another dtype. And an index has to be in
32 bits, which what was read from a tensor of int64 is not.

In 2.13 too, its remainder of a negative number is negative, as in C, where torch's has the sign of the divisor; and a
negative index is mended as for the other kernels.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from attn_mods.backends.mending import is_mended, mended, once, tell_apart_what_is_kept
from attn_mods.backends.negative_indexes import FromTheEnd, mend_indexes

TAG = "FLASH mended by attn_mods"

COMPARED = {"maximum": "gt", "minimum": "lt"}
"""How the number that is chosen compares with the other."""

INDEX = "_emit_scalar_fragment"
"""The method of 2.11 that writes an index; a torch that has none is not lacking in numbers either."""


@once
def mend_flash_kernel() -> None:
    """Give the generator what it lacks."""
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    module = "torch._inductor.codegen.cutedsl"
    operations = importlib.import_module(f"{module}.cutedsl_op_overrides").CuteDSLOpOverrides
    mend(operations, importlib.import_module(f"{module}.cutedsl_kernel").ModificationWrapperCuteDSL)
    tell_apart_what_is_kept(TAG)


def mend(operations: Any, writer: Any) -> None:
    """Mend the class that writes operations and the one that writes what is read of tensors."""
    for name, compared in COMPARED.items():
        if "NotImplementedError" in inspect.getsource(getattr(operations, name)):
            setattr(operations, name, staticmethod(_extreme(operations, compared)))
    if not is_mended(operations.remainder):
        operations.remainder = staticmethod(_remainder(operations, operations.remainder))
    mend_indexes(writer, _from_the_end(operations))
    original = getattr(writer, INDEX, None)
    if original is not None and not is_mended(original):
        setattr(writer, INDEX, _index(original))
        operations.to_dtype = staticmethod(_to_dtype(operations.to_dtype))


def _extreme(operations: Any, compared: str) -> Callable[[Any, Any], Any]:
    """The larger or the smaller of two: a NaN on either side is the result, as in torch."""

    def extreme(a: Any, b: Any) -> Any:
        is_first = operations.logical_or(getattr(operations, compared)(a, b), operations.ne(a, a))
        return operations.where(is_first, a, b)

    return extreme


def _remainder(operations: Any, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The remainder with the sign of the divisor, whichever sign the kernel's own has."""

    @mended
    def remainder(a: Any, b: Any) -> Any:
        rest = original(a, b)
        if isinstance(b, str) and b.isdecimal():
            return operations.where(operations.lt(rest, "0"), operations.add(rest, b), rest)
        return original(operations.add(rest, b), b)

    return remainder


def _from_the_end(operations: Any) -> FromTheEnd:
    """An index that counts from the end of a tensor where it is negative; in 2.13 none that its generator follows."""

    def from_the_end(writer: Any, index: Any, size: str) -> Any:
        if getattr(index, "index_expr", None) is not None:
            return index
        return operations.where(operations.lt(index, "0"), operations.add(index, size), index)

    return from_the_end


def _index(original: Callable[..., str]) -> Callable[..., str]:
    """A number as it is, anything else in 32 bits."""

    @mended
    def index(self: Any, text: str, cute_dtype: str, torch_dtype: Any) -> str:
        if text.lstrip("-").isdecimal():
            return text
        return original(self, f"({text}).to({cute_dtype})", cute_dtype, torch_dtype)

    return index


def _to_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """A number, which alone is text here, as it is: it takes the dtype of what it is combined with."""

    def to_dtype(x: Any, *dtypes: Any, **named: Any) -> Any:
        return x if isinstance(x, str) else original(x, *dtypes, **named)

    return to_dtype
