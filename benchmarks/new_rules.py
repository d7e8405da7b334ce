"""Rules that no cache knows: the same mask, each time in source text and operations that this process has not seen."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator

from attn_mods.mask import MaskMod

CLAUSES = (
    "(q_idx * {number} + {number} > q_idx)",
    "(kv_idx + {number} >= kv_idx)",
    "(q_idx + kv_idx + {number} >= {number})",
    "((q_idx + {number}) // {number} >= 0)",
    "((kv_idx - {number}) < kv_idx * {number})",
    "(kv_idx % {number} < {number})",
    "(q_idx % {number} + kv_idx >= 0)",
    "~(kv_idx + q_idx * {number} < 0)",
)
"""Clauses that hold at every position, for every number above 1."""

NUMBER_OF_CLAUSES = 4
TEXT = """def make(rule):
    def new_rule(b, h, q_idx, kv_idx):
        return rule(b, h, q_idx, kv_idx) & {clauses}
    return new_rule
"""

_orders: Iterator[tuple[str, ...]] = itertools.permutations(CLAUSES, NUMBER_OF_CLAUSES)
_numbers = itertools.count(2)


def in_new_text(rule: MaskMod) -> MaskMod:
    """The same mask as a function of newly written source, which calls the rule among clauses that always hold.

    Raises:
        RuntimeError: All orders of the clauses were used up, 1,680 of them.
    """
    clauses = next(_orders, None)
    if clauses is None:
        raise RuntimeError("in_new_text: every order of the clauses was used; start another process for more rules")
    number = next(_numbers)
    written = " & ".join(clause.format(number=number) for clause in clauses)
    source = TEXT.format(clauses=written)
    filename = f"<new rule {number}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    made: dict[str, Callable[[MaskMod], MaskMod]] = {}
    exec(compile(source, filename, "exec"), made)  # the text is this module's own
    return made["make"](rule)
