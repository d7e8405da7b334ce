"""Scores grow with the logarithm of the number of keys, so that attention stays sharp in long contexts.

Rule: score -> score * (scaling[h] * log(n) + bias[h]) with n = max(i + 1, minimum).
From: Nakanishi, "Scalable-Softmax Is Superior for Attention", section 2; Chiang and Cholak; Qwen's logn attention.
Trap: n is the number of keys a causal query sees, i + 1, whatever the mask hides; log(1) = 0 flattens row 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import per_head
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class LogNScale(Score):
    """score -> score * (scaling * log(n) + bias), natural logarithm, n = max(i + 1, minimum).

    i counts from the sequence's first token; ``per_document`` restarts it, and n with it, in every document.

    Args:
        scaling: Factor of log(n), a number or float [H] or [1] or 0-d; may be learned (s in the paper).
        bias: What is added to it, a number or a tensor alike (b in the paper's fits, dropped in its final form).
        minimum: Smallest n, >= 1. 1 is the paper's; 2 keeps the factor of the first query from being ``bias`` alone;
            the training length L with ``scaling=1 / log(L)`` gives Qwen's form, 1 up to L and log(n) / log(L) beyond.

    Raises:
        ValueError: minimum < 1, a tensor with more than one dimension, NaN or infinity.
        TypeError: scaling or bias is neither a number nor a float tensor, minimum is not an int.

    References:
        Nakanishi 2025, arXiv 2501.19399, section 2 (SSMax: n^(s z_i) / sum n^(s z_j)); Chiang and Cholak 2022,
        arXiv 2202.12172; logn_list in Qwen's modeling_qwen.py.
    """

    scaling: float | Tensor = 1.0
    bias: float | Tensor = 0.0
    minimum: int = 1

    entry = Entry(
        title="Log-n scaling (SSMax)",
        summary="Scores grow with the logarithm of the number of keys, so that attention stays sharp in long contexts.",
        papers=(
            Paper("Scalable-Softmax Is Superior for Attention", "2501.19399", where="section 2"),
            Paper("Overcoming a Theoretical Limitation of Self-Attention", "2202.12172"),
        ),
        models=(Model("Qwen 7B", field="use_logn_attn"),),
        tags=frozenset({"decoder", "learned", "position", "temperature"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: LogNScale(scaling=0.43)),
            "per_head": Case(
                lambda q_len, kv_len, device: LogNScale(
                    torch.tensor([0.43, 1.5], device=device), torch.tensor([0.2, -0.1], device=device)
                )
            ),
            "one_scaling": Case(lambda q_len, kv_len, device: LogNScale(torch.tensor(0.3, device=device), 0.7)),
            "from_training_length": Case(lambda q_len, kv_len, device: LogNScale(scaling=1 / math.log(20), minimum=20)),
            "bench": Case(lambda q_len, kv_len, device: LogNScale(torch.linspace(0.1, 0.9, 16, device=device))),
        },
        traps=(
            "Positions count from 1 in n; log(i) instead of log(i + 1) is -inf for the first query.",
            "Folded into q it is free, but then a cap or a bias that follows acts on other scores.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass a finite number, or a float tensor with one number per query head"
        for field in ("scaling", "bias"):
            value = getattr(self, field)
            if isinstance(value, Tensor):
                checked = checks.learnable(self.name, field, value, ndim=(1,), remedy=remedy)
                object.__setattr__(self, field, checked)
            else:
                checks.number_field(self, field, remedy)
        checks.static_integer_field(self, "minimum", 1, "pass 1 for log(i + 1) as it is")

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule, its factor in float32."""
        # As text: a compiler takes a captured float that differs from the last one for a variable, and flex refuses it.
        scaling, bias = (value if isinstance(value, Tensor) else repr(value) for value in self._factors())
        minimum = self.minimum

        def log_n_scale(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            log_n = torch.log((q_idx + 1).clamp(min=minimum).to(torch.float32))
            return score * (_of_head(scaling, h) * log_n + _of_head(bias, h))

        return log_n_scale

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """A factor per row, through log(1 + i)."""
        rows = torch.log1p(i.clamp(min=0).to(scores.dtype)).clamp(min=math.log(self.minimum))
        factor = torch.outer(_column(self.scaling, scores), rows) + _column(self.bias, scores)[:, None]
        return torch.einsum("bhqk,hq->bhqk", scores, factor.expand(scores.shape[1], -1))

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per number."""
        return 1, checks.broadcast(self.name, "H", *(len(v) for v in self._factors() if isinstance(v, Tensor)))

    def _factors(self) -> tuple[float | Tensor, float | Tensor]:
        return self.scaling, self.bias


def _of_head(value: str | Tensor, h: Tensor) -> float | Tensor:
    return per_head(value, h) if isinstance(value, Tensor) else float(value)


def _column(value: float | Tensor, scores: Tensor) -> Tensor:
    return value.to(scores.dtype) if isinstance(value, Tensor) else scores.new_full((1,), value)
