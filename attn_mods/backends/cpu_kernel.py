"""Two mistakes in torch's CPU kernel of flex_attention (seen in 2.11 and 2.13), mended before it is first compiled.

The kernel is generated with placeholders for the sizes of its two tiles, and each is then replaced by a variable in the
text of the program: a placeholder ``ks2`` also inside ``ks29``, the symbol of a captured tensor's length. With tables
whose length changes, the program does not compile, or, where a symbol is called just as a placeholder, reads from wrong
places. The placeholders are numbered after the symbols, so a thousand symbols that nothing uses make them unmistakable.

Its product of queries and keys goes by 16 keys at a time. What is left at the end it computes as if it were 16 too, if
it is whole vectors and the head has fewer than 24 dimensions: 8 keys on a processor with AVX2 alone. It reads beyond
the keys, and the scores of keys that do not exist overwrite what lies behind the last row: the largest score of each
query. The other of its two ways is taken there instead, always: what is left is never a whole block.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types

from attn_mods.backends.mending import is_mended, mended, once, tell_apart_what_is_kept

UNUSED = tuple(sympy.Symbol(f"unused{number}") for number in range(1000))

WHOLE_VECTORS = "N % Vectorized::size() == 0 && 24 * BLOCK_M > K"
WHOLE_BLOCK = "N == BLOCK_N && 24 * BLOCK_M > K"

TAG = "flex_attention mended by attn_mods"


@once  # every call of attention asks
def mend_cpu_kernel() -> None:
    """Mend both, where this torch has the kernel.

    What the compiler keeps on disk is told apart from what it generated without this.
    """
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    template: Any = importlib.import_module("torch._inductor.codegen.cpp_flex_attention_template")
    original: Callable[..., str] | None = getattr(template.CppFlexAttentionTemplate, "modification", None)
    if original is None or is_mended(original):
        return
    template.CppFlexAttentionTemplate.modification = _with_unmistakable_placeholders(original)
    products: Any = importlib.import_module("torch._inductor.codegen.cpp_micro_gemm").CppMicroGemmFP32Vec
    products.TEMPLATE_KERNEL = products.TEMPLATE_KERNEL.replace(WHOLE_VECTORS, WHOLE_BLOCK)
    tell_apart_what_is_kept(TAG)


def _with_unmistakable_placeholders(original: Callable[..., str]) -> Callable[..., str]:
    @mended
    def modification(self: Any, *arguments: Any) -> str:
        symbols = self.extra_sizevars
        self.extra_sizevars = [*symbols, *UNUSED]
        try:
            return original(self, *arguments)
        finally:
            self.extra_sizevars = symbols

    return modification
