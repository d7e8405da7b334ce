"""The inner product of two sinusoidal position embeddings: a bias that falls with the logarithm of the distance.

Rule: score -> score + H / (8 (h + 1)) * sum over k < d / 2 of cos((i - j) / 10000^(2k / d)).
From: Chi et al., "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis".
Trap: d is a parameter of the bias, 128 in the paper, not the model's width or head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import at_least_float32, inside
from attn_mods.entry import Case, Entry, Paper
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class Sandwich(Score):
    """score -> score + H / (8 (h + 1)) * sum over k < d / 2 of cos((i - j) / 10000^(2k / d)).

    Args:
        num_heads: Query heads H, >= 1. Head h is divided by 8 (h + 1) / H, the exponent of ALiBi's slope.
        max_length: Positions the bias is made for, >= 1; longer sequences are refused.
        dimension: d, even and >= 2; the sum has d / 2 terms.
        table: The sums at distances 0 to max_length - 1, float [max_length]; computed on torch's default device if
            None. ``.to(device)`` moves it.

    Raises:
        ValueError: A size out of range, a table of another length, positions at or beyond max_length.
        TypeError: A size that is not an int, a table that is not a float tensor.

    References:
        Chi et al. 2022, arXiv 2212.10356, the section on Sandwich and the code in its appendix, where k counts from 0
        as in the sinusoidal embedding of Vaswani et al.
    """

    additive = True
    constants = frozenset({"table"})

    num_heads: int
    max_length: int
    dimension: int = 128
    table: Tensor | None = None

    entry = Entry(
        title="Sandwich",
        summary="The inner product of two sinusoidal position embeddings, scaled per head.",
        papers=(
            Paper(
                "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
                "2212.10356",
                where="section on Sandwich and the code in the appendix",
            ),
        ),
        tags=frozenset({"position", "additive", "decoder"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Sandwich(2, max(q_len, kv_len)).to(device)),
            "three_heads": Case(lambda q_len, kv_len, device: Sandwich(3, max(q_len, kv_len) + 5, 2).to(device)),
            "bench": Case(lambda q_len, kv_len, device: Sandwich(16, max(q_len, kv_len)).to(device)),
        },
        traps=("The factor per head falls with h: head 0 has the strongest bias.",),
    )

    def __post_init__(self) -> None:
        checks.static_integer_field(self, "num_heads", 1, "pass the number of query heads")
        checks.static_integer_field(self, "max_length", 1, "pass the longest sequence to come")
        checks.static_integer_field(self, "dimension", 2, "pass 128 as in the paper")
        if self.dimension % 2:
            checks.fail(self.name, "dimension must be even", self.dimension, "pass 128 as in the paper")
        if self.table is None:
            distances = torch.arange(self.max_length, dtype=torch.float64)
            object.__setattr__(self, "table", cosine_sums(distances, self.dimension).to(torch.float32))
        else:
            remedy = "leave table out, it is computed from max_length and dimension"
            checks.tensor(self.name, "table", self.table, ndim=(1,), kind="float", remedy=remedy)
            checks.finite(self.name, "table", self.table, remedy)
            if len(self.table) != self.max_length:
                checks.fail(self.name, f"table must have {self.max_length} numbers", len(self.table), remedy)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """One read per score, at the distance."""
        table, heads, length = cast(Tensor, self.table), self.num_heads, self.max_length

        def sandwich(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            total = at_least_float32(table[inside((q_idx - kv_idx).abs(), length)])
            return score + total * (heads / 8) / (h + 1)

        return sandwich

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Inner products of the embeddings themselves."""
        product = sinusoidal(i, self.dimension) @ sinusoidal(j, self.dimension).T
        ratio = torch.arange(1, self.num_heads + 1, device=scores.device) * 8 / self.num_heads
        return scores + product.to(scores.dtype) / ratio[:, None, None]

    def batch_and_heads(self) -> tuple[int, int]:
        """As many heads as said."""
        return 1, self.num_heads

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """All positions must lie below max_length."""
        for end in (q_end, kv_end):
            if end is not None and end > self.max_length:
                remedy = "make it with a larger max_length"
                checks.fail(self.name, f"positions must end at or before max_length = {self.max_length}", end, remedy)


def cosine_sums(distances: Tensor, dimension: int) -> Tensor:
    """Sum over k < dimension / 2 of cos(distance / 10000^(2k / dimension)) for each distance, [n] to [n]."""
    return torch.cos(distances[:, None] * _frequencies(dimension, distances.device)).sum(-1)


def sinusoidal(positions: Tensor, dimension: int) -> Tensor:
    """The position embedding of Vaswani et al., sines then cosines, float64 [n, dimension]."""
    angles = positions.double()[:, None] * _frequencies(dimension, positions.device)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _frequencies(dimension: int, device: torch.device) -> Tensor:
    return 10000.0 ** (-torch.arange(0, dimension, 2, dtype=torch.float64, device=device) / dimension)
