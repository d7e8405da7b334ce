"""A learned bias per head and distance; distances beyond the table share its ends.

Rule: score -> score + table[h, clip(j - i, -R, R) + R].
From: the scalar form of Shaw et al., "Self-Attention with Relative Position Representations", section 3.2.
Trap: the index is key minus query. A table trained with i - j is this one reversed: ``table.flip(1)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import at_least_float32, only_if_many
from attn_mods.entry import Case, Entry, Paper
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class RelativeBiasTable(Score):
    """score -> score + table[h, clip(j - i, -R, R) + R].

    Args:
        table: Bias by head and distance, float [H, 2R + 1] or [1, 2R + 1]; may be learned. Column R is the query's
            own key, column 0 all keys R or more before it, column 2R all keys R or more after it. -inf hides the keys
            at that distance.

    Raises:
        ValueError: An even number of columns, NaN or +inf in it.
        TypeError: table is not a float tensor.

    References:
        Shaw et al. 2018, arXiv 1803.02155, section 3.2 (there a vector per distance, its inner product with q; here
        one number). Index j - i as in the paper and in tensor2tensor.
    """

    additive = True

    table: Tensor

    entry = Entry(
        title="Relative bias table",
        summary="A learned bias per head and distance; distances beyond the table share its ends.",
        papers=(Paper("Self-Attention with Relative Position Representations", "1803.02155", where="section 3.2"),),
        tags=frozenset({"position", "additive", "learned"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: RelativeBiasTable(_example(2, 2, device))),
            "one_column": Case(lambda q_len, kv_len, device: RelativeBiasTable(_example(3, 0, device))),
            "one_head": Case(lambda q_len, kv_len, device: RelativeBiasTable(_example(1, 5, device))),
            "wider_than_sequence": Case(
                lambda q_len, kv_len, device: RelativeBiasTable(_example(2, max(q_len, kv_len) + 3, device))
            ),
            "bench": Case(lambda q_len, kv_len, device: RelativeBiasTable(_example(16, 128, device))),
        },
        traps=("The index is j - i; i - j runs without an error and mirrors the bias.",),
    )

    def __post_init__(self) -> None:
        remedy = "pass a float tensor [H, 2R + 1] whose column R is the bias of distance 0"
        table = checks.learnable(self.name, "table", self.table, ndim=(2,), remedy=remedy, hides=True)
        if table.shape[1] % 2 == 0:
            checks.fail(self.name, "table must have an odd number of columns", table.shape[1], remedy)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """One read per score, inside the table at every distance."""
        table, heads = self.table, self.batch_and_heads()[1]
        # Plain numbers: the CPU compiler (torch 2.13) cannot lower arithmetic between captured integers that change.
        centre, last = self._reach(), table.shape[1] - 1

        def relative_bias_table(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            column = (kv_idx - q_idx + centre).clamp(0, last)
            return score + at_least_float32(table[only_if_many(h, heads), column])

        return relative_bias_table

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """A row per head long enough for every distance: the table with its ends repeated."""
        distance = j[None, :] - i[:, None]
        reach = self._reach()
        longer = max(0, int(distance.abs().max()) - reach) if distance.numel() else 0
        table = self.table.to(scores.dtype)
        row = torch.cat([table[:, :1].expand(-1, longer), table, table[:, -1:].expand(-1, longer)], dim=1)
        return scores + row[:, distance + reach + longer]

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per row."""
        return 1, self.table.shape[0]

    def _reach(self) -> int:
        return self.table.shape[1] // 2


def _example(heads: int, reach: int, device: str) -> Tensor:
    return torch.randn(heads, 2 * reach + 1, generator=torch.Generator().manual_seed(0)).to(device)
