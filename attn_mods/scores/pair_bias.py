"""A bias for every pair of tokens, given as a whole matrix per head.

Rule: score -> score + bias[b, h, i, j].
From: Jumper et al., AlphaFold 2, supplementary algorithm 7; Abramson et al., AlphaFold 3, algorithm 24.
Trap: the table has B x H x N x M numbers; beyond 2^31 - 1 of them 32-bit index arithmetic reads elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import at_least_float32, inside, only_if_many
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Frame
from attn_mods.score import Score, ScoreMod

LARGEST_INDEX = 2**31 - 1
# flex: forward and gradients right at S = 46,400 on an H100
BACKENDS_WITH_WIDE_INDICES = ("eager", "flex", "flex_float16", "flex_bfloat16")


@dataclass(frozen=True, eq=False)
class PairBias(Score):
    """score -> score + bias[b, h, i, j].

    Args:
        bias: Bias of query i and key j, float [B | 1, H | 1, N, M]; may be learned. -inf hides key j from query i, as
            in a float attn_mask of scaled_dot_product_attention; no block is skipped for it. A tensor that is not
            contiguous, such as a permuted projection of a pair representation, is copied whenever the rule is made.

    Raises:
        ValueError: More or fewer than four dimensions, NaN or +inf in it, positions outside of [N, M], and in
            ``score_mod`` a table of more than 2^31 - 1 numbers (S > 46,340 for one head) for another backend than
            "flex" and "eager".
        TypeError: bias is not a float tensor.

    References:
        Jumper et al. 2021, doi 10.1038/s41586-021-03819-2, supplement, algorithm 7 (row attention with pair bias);
        Abramson et al. 2024, doi 10.1038/s41586-024-07487-w, supplement, algorithm 24.
    """

    additive = True

    bias: Tensor

    entry = Entry(
        title="Pair bias",
        summary="A bias for every pair of tokens, given as a whole matrix per head.",
        papers=(
            Paper(
                "Highly accurate protein structure prediction with AlphaFold",
                where="supplement, algorithm 7",
                url="https://doi.org/10.1038/s41586-021-03819-2",
            ),
            Paper(
                "Accurate structure prediction of biomolecular interactions with AlphaFold 3",
                where="supplement, algorithm 24",
                url="https://doi.org/10.1038/s41586-024-07487-w",
            ),
        ),
        models=(Model("AlphaFold 2"), Model("AlphaFold 3")),
        tags=frozenset({"additive", "learned", "bidirectional"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: PairBias(_example(1, 2, max(q_len, kv_len), device))),
            "per_sample": Case(lambda q_len, kv_len, device: PairBias(_example(2, 3, max(q_len, kv_len), device))),
            "one_head": Case(lambda q_len, kv_len, device: PairBias(_example(2, 1, max(q_len, kv_len), device))),
            "permuted": Case(
                lambda q_len, kv_len, device: PairBias(_example(2, 2, max(q_len, kv_len), device).transpose(2, 3))
            ),
            "bench": Case(lambda q_len, kv_len, device: PairBias(_example(1, 16, max(q_len, kv_len), device))),
        },
        traps=(
            "bias[b, h, i, j] in a rule is computed with 32-bit indices: past S = 46,340 it reads elsewhere.",
            "Its gradient is as large as the table; give PyTorch's dense attention a thought for short sequences.",
            "Positions restart in per_document: every document would read the table from its first row.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass a float tensor [B, H, N, M], with B or H = 1 for all"
        checks.learnable(self.name, "bias", self.bias, ndim=(4,), remedy=remedy, hides=True)

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """ "self" for a square table, whose rows are positions of the keys' sequence; else "cross"."""
        return "self" if self.bias.shape[2] == self.bias.shape[3] else "cross"

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """One read at a flat 64-bit offset."""
        refused = self.unsupported_by(backend)
        if refused is not None:
            remedy = 'use backend="flex", or split heads or batch over several calls'
            limit = f"bias must have at most {LARGEST_INDEX} numbers in all for kernels that index in 32 bits"
            checks.fail(self.name, limit, refused, remedy)
        batch, heads, q_len, kv_len = self.bias.shape
        flat = self.bias.reshape(-1)

        def pair_bias(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            matrix = only_if_many(b, batch).to(torch.int64) * heads + only_if_many(h, heads)
            row = matrix * q_len + inside(q_idx, q_len)
            return score + at_least_float32(flat[row * kv_len + inside(kv_idx, kv_len)])

        return pair_bias

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The rows and columns of the table at these positions."""
        return scores + self.bias.index_select(2, i).index_select(3, j).to(scores.dtype)

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) of the table."""
        return self.bias.shape[0], self.bias.shape[1]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Queries and keys must lie inside of the table."""
        remedy, size = "pass a bias for every position, or check q_len, kv_len and q_offset", self.bias.shape[3]
        checks.queries_end(self.name, self.bias.shape[2], q_end, remedy)
        if kv_end is not None and kv_end > size:
            checks.fail(self.name, f"the keys must end at or before position {size}", kv_end, remedy)

    def unsupported_by(self, backend: str) -> str | None:
        """Kernels that index in 32 bits would read elsewhere in a large table."""
        if self.bias.numel() <= LARGEST_INDEX or backend in BACKENDS_WITH_WIDE_INDICES:
            return None
        sizes = " x ".join(str(size) for size in self.bias.shape)
        return f"{self.bias.numel()} ({sizes}) numbers of {self.name} are too many for an index of 32 bits"


def _example(batch: int, heads: int, length: int, device: str) -> Tensor:
    return torch.randn(batch, heads, length, length, generator=torch.Generator().manual_seed(0)).to(device)
