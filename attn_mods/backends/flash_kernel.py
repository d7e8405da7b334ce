"""What torch's generator of code for the FLASH kernel of flex_attention lacks (2.11, not 2.13), mended before its use.

It has no maximum and no minimum, of which clamps are made: they are spelled as a choice. A number, which is what
``h * 0`` becomes, can be neither an index of a captured tensor nor brought to another dtype. And an index has to be in
32 bits, which what was read from a tensor of int64 is not.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

COMPARED = {"maximum": "gt", "minimum": "lt"}
"""How the number that is chosen compares with the other."""

INDEX = "_emit_scalar_fragment"


def mend_flash_kernel() -> None:
    """Give the generator what it lacks."""
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    module = "torch._inductor.codegen.cutedsl"
    operations = importlib.import_module(f"{module}.cutedsl_op_overrides").CuteDSLOpOverrides
    mend(operations, importlib.import_module(f"{module}.cutedsl_kernel").ModificationWrapperCuteDSL)


def mend(operations: Any, writer: Any) -> None:
    """Mend the class that writes operations and the one that writes what is read of tensors."""
    for name, compared in COMPARED.items():
        if "NotImplementedError" in inspect.getsource(getattr(operations, name)):
            setattr(operations, name, staticmethod(_extreme(operations, compared)))
    original = getattr(writer, INDEX, None)
    if original is not None and not getattr(original, "is_mended", False):
        setattr(writer, INDEX, _index(original))
        operations.to_dtype = staticmethod(_to_dtype(operations.to_dtype))


def _extreme(operations: Any, compared: str) -> Callable[[Any, Any], Any]:
    """The larger or the smaller of two: a NaN on either side is the result, as in torch."""

    def extreme(a: Any, b: Any) -> Any:
        is_first = operations.logical_or(getattr(operations, compared)(a, b), operations.ne(a, a))
        return operations.where(is_first, a, b)

    return extreme


def _index(original: Callable[..., str]) -> Callable[..., str]:
    """A number as it is, anything else in 32 bits."""

    def index(self: Any, text: str, cute_dtype: str, torch_dtype: Any) -> str:
        if _is_number(text):
            return text
        return original(self, f"({text}).to({cute_dtype})", cute_dtype, torch_dtype)

    index.is_mended = True  # type: ignore[attr-defined]
    return index


def _to_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """A number as it is: it takes the dtype of what it is combined with."""

    def to_dtype(x: Any, *dtypes: Any, **named: Any) -> Any:
        return x if _is_number(x) else original(x, *dtypes, **named)

    return to_dtype


def _is_number(code: Any) -> bool:
    return isinstance(code, str) and code.lstrip("-").isdecimal()
