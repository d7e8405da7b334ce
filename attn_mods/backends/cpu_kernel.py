"""A mistake in torch's CPU kernel of flex_attention (seen in 2.13), mended before the kernel is first compiled.

The kernel is generated with placeholders for the sizes of its two tiles, and each is then replaced by a variable in the
text of the program: a placeholder ``ks2`` also inside ``ks29``, the symbol of a captured tensor's length. With tables
whose length changes, the program does not compile, or, where a symbol is called just as a placeholder, reads from wrong
places. The placeholders are numbered after the symbols, so a thousand symbols that nothing uses make them unmistakable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

UNUSED = tuple(sympy.Symbol(f"unused{number}") for number in range(1000))


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # at trace time too, outside of the graph
def mend_cpu_kernel() -> bool:
    """Make the placeholders unmistakable; whether this torch has them."""
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    template: Any = importlib.import_module("torch._inductor.codegen.cpp_flex_attention_template")
    kernel = template.CppFlexAttentionTemplate
    original: Callable[..., str] | None = getattr(kernel, "modification", None)
    if original is None:
        return False
    if getattr(original, "is_mended", False):
        return True

    def modification(self: Any, *arguments: Any) -> str:
        symbols = self.extra_sizevars
        self.extra_sizevars = [*symbols, *UNUSED]
        try:
            return original(self, *arguments)
        finally:
            self.extra_sizevars = symbols

    modification.is_mended = True  # type: ignore[attr-defined]
    kernel.modification = modification
    return True
