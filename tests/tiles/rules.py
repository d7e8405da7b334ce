"""Random mask rules, written as Python source: ``random_case(seed)`` is the same rule for ever.

A failure is reported as the source of its rule, tables included, which runs when pasted into a Python prompt. Two
kinds of rule are written: *expressions*, which nest whatever operations torch allows until the tile calculus must have
lost its way (huge constants, narrow integers, shared variables, lookups of lookups), and *compositions* of the masks
that people really write, joined by ``& | ^ ~`` at shifted positions.

Left out on purpose, because torch itself gives no one answer: dividing by -1 (the smallest integer crashes the
process), casting a float beyond the integer range, and floating-point functions whose vectorised and scalar forms
round differently (exp, sin, and the like).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tests.tiles.rule_compositions import CompositionWriter

SMALL_GRID = (40, (4, 8, 16))  # longest length, block sizes
LARGE_GRID = (130, (8, 16, 32))

NO_MASKS = (
    "True",
    "(q_idx > 3) - (kv_idx > 3)",
    "(q_idx > 3) and (kv_idx > 3)",
    "(q_idx if q_idx > 3 else kv_idx) > 5",
    "torch.rand(()) < 0.5",
    "q_idx.unsqueeze(0) > kv_idx",
    "kv_idx.item() > 3",
)

# a rule need not be a plain function
AS_PARTIAL = [
    "def with_shift(b, h, q_idx, kv_idx, shift):",
    "    return rule_without_shift(b, h, q_idx, kv_idx) | (q_idx - kv_idx == shift)",
    "rule_without_shift, rule = rule, functools.partial(with_shift, shift=3)",
]
AS_OBJECT = [
    "class Negated:",
    "    def __init__(self, kept): self.kept = kept",
    "    def __call__(self, b, h, q_idx, kv_idx): return ~self.kept(b, h, q_idx, kv_idx)",
    "rule = Negated(rule)",
]


@dataclass(frozen=True)
class Case:
    """One rule on one grid; ``source`` defines ``tables`` and ``rule`` when executed."""

    seed: int
    source: str
    tables: dict[str, Tensor]
    rule: Callable[..., Tensor]
    B: int
    H: int
    q_len: int
    kv_len: int
    block_size: tuple[int, int]

    def __str__(self) -> str:
        grid = f"B={self.B} H={self.H} q_len={self.q_len} kv_len={self.kv_len} block_size={self.block_size}"
        return f"seed {self.seed}: {grid}\n{self.source}"


def random_case(seed: int) -> Case:
    """The rule and grid of this seed."""
    chance = random.Random(seed)
    B, H = chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2, 3))
    longest, blocks = LARGE_GRID if chance.random() < 0.12 else SMALL_GRID
    q_len, kv_len = chance.randint(1, longest), chance.randint(1, longest)
    block_size = (chance.choice(blocks), chance.choice(blocks))
    source = rule_source(seed, CompositionWriter(chance, B, H, q_len, kv_len))
    tables, rule = execute(source, f"<random_case({seed})>")
    return Case(seed, source, tables, rule, B, H, q_len, kv_len, block_size)


def rule_source(seed: int, writer: CompositionWriter) -> str:
    """A whole module. One rule in a hundred is no mask at all, and torch must refuse it."""
    if writer.happens(0.33):
        result = writer.composition()
    elif writer.happens(0.015):
        result = writer.write(lambda: writer.integer(2), lambda: writer.real(2), *NO_MASKS)
    else:
        result = writer.boolean(writer.whole(2, 5))
    lines = [
        "import functools",
        "import torch",
        "from torch.nn.attention.flex_attention import and_masks, or_masks",
        f"generator = torch.Generator().manual_seed({seed})",
        *writer.table_lines,
        *writer.mask_lines,
        "def rule(b, h, q_idx, kv_idx):",
        *(f"    {statement}" for statement in writer.statements),
        f"    return {result}",
        *writer.pick((28, []), (1, AS_PARTIAL), (1, AS_OBJECT)),
    ]
    return "\n".join(lines) + "\n"


def execute(source: str, name: str) -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
    """Run a rule's source: its tables by name, and the rule."""
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    tables = {key: value for key, value in namespace.items() if isinstance(value, Tensor)}
    return tables, namespace["rule"]
