"""Every score of a query head gets the same constant.

Rule: score -> score + bias[h].
From: the FlexAttention benchmarks and tests of PyTorch, as the smallest score with a learned tensor.
Trap: without a sink it changes no output, only lse by bias[h]; its gradient is then 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import per_head
from attn_mods.entry import Case, Entry, Paper
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class HeadBias(Score):
    """score -> score + bias[h].

    Args:
        bias: One number per query head, float [H] or [1] or 0-d; may be learned. -inf hides all keys from the head.

    Raises:
        TypeError: bias is not a float tensor.
        ValueError: bias has more than one dimension, or holds NaN or +inf.

    References:
        Dong et al. 2024, "Flex Attention", arXiv 2412.05496; head_bias in PyTorch's
        benchmarks/transformer/score_mod.py and test/inductor/test_flex_attention.py.
    """

    additive = True
    frame = "keys"

    bias: Tensor

    entry = Entry(
        title="Head bias",
        summary="Every score of a query head gets the same constant.",
        papers=(
            Paper("Flex Attention: A Programming Model for Generating Optimized Attention Kernels", "2412.05496"),
            Paper(
                "PyTorch's FlexAttention benchmark",
                where="head_bias",
                url="https://github.com/pytorch/pytorch/blob/main/benchmarks/transformer/score_mod.py",
            ),
        ),
        tags=frozenset({"additive", "learned"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: HeadBias(torch.tensor([0.5, -2.0], device=device))),
            "one": Case(lambda q_len, kv_len, device: HeadBias(torch.tensor(1.25, device=device))),
            "bench": Case(lambda q_len, kv_len, device: HeadBias(torch.linspace(-1, 1, 16, device=device))),
        },
        traps=("A constant per row leaves the softmax as it is: only lse and a sink notice.",),
    )

    def __post_init__(self) -> None:
        remedy = "pass one number per query head, or one for all"
        bias = checks.learnable(self.name, "bias", self.bias, ndim=(1,), remedy=remedy, hides=True)
        object.__setattr__(self, "bias", bias)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule score + bias[h]."""
        bias = self.bias

        def head_bias(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + per_head(bias, h)

        return head_bias

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The bias spread over both positions."""
        return scores + self.bias.to(scores.dtype).reshape(1, -1, 1, 1).expand(1, -1, len(i), len(j))

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per number."""
        return 1, self.bias.shape[0]
