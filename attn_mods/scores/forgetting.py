"""Keys fade by the forget gates of the tokens after them, which depend on the data.

Rule: score -> score + c[b, h, i] - c[b, h, j], c = running sum of log forget gates; for j <= i that is the sum of
log f over the tokens j + 1 to i.
From: Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate", section 3.
Trap: the parameter is log f, at most 0, not f. Only for causal masks: keys after the query would gain score.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import inside, only_if_many
from attn_mods.entry import Case, Entry, Paper
from attn_mods.realised import realised
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class Forgetting(Score):
    """score -> score + c[b, h, i] - c[b, h, j] with c the running sum of ``log_gates`` along the tokens.

    Args:
        log_gates: Logarithm of each token's forget gate, float [B | 1, H | 1, S], <= 0, for example
            ``logsigmoid(linear(x))``; may be learned. It describes all S positions of queries and keys. A gate that
            is closed, log 0 = -inf, has no running sum: pass a finite number such as -1e4, or use a document mask.

    Raises:
        ValueError: Values above 0, NaN or infinite, more or fewer than three dimensions, positions at or beyond S.
        TypeError: log_gates is not a float tensor.

    References:
        Lin et al. 2025, arXiv 2503.02130, section 3; github.com/zhixuan-lin/forgetting-transformer.
    """

    additive = True

    log_gates: Tensor

    entry = Entry(
        title="Forgetting attention (FoX)",
        summary="Keys fade by the forget gates of the tokens after them, which depend on the data.",
        papers=(
            Paper("Forgetting Transformer: Softmax Attention with a Forget Gate", "2503.02130", where="section 3"),
        ),
        tags=frozenset({"position", "additive", "learned", "causal", "decoder"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Forgetting(_example(1, 2, max(q_len, kv_len), device))),
            "per_sample": Case(lambda q_len, kv_len, device: Forgetting(_example(2, 3, max(q_len, kv_len), device))),
            "one_head": Case(lambda q_len, kv_len, device: Forgetting(_example(2, 1, max(q_len, kv_len), device))),
            "bench": Case(lambda q_len, kv_len, device: Forgetting(_example(1, 16, max(q_len, kv_len), device))),
        },
        traps=(
            "A rule made before the gates change is stale: make the score anew in every forward pass.",
            "Give packed documents the gates of the whole row and mask them with Document; per_document would read "
            "every document's gates from the row's first token.",
            "One float32 running sum loses a hundredth by 100,000 tokens; here its rounding is kept beside it.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass the logarithms of the gates [B, H, S], for example logsigmoid of the gate's input"
        checks.learnable(self.name, "log_gates", self.log_gates, ndim=(3,), remedy=remedy, maximum=0)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The difference of two running sums, each held in two float32 numbers (one float64 number in eager)."""
        batch, heads, length = self.log_gates.shape
        exact = self.log_gates.to(torch.float64).cumsum(-1)
        # Kernels add float32; only eager can use all of what float64 gates hold.
        dtype = self.log_gates.dtype if backend == "eager" else torch.float32
        sums = realised(exact.to(torch.promote_types(dtype, torch.float32)))
        # A tensor of its own for each side: flex_attention has no gradient for one that a rule reads twice.
        query_sums, key_sums = sums, realised(sums.clone())
        # The remainder is constant to autograd: its derivative is 0, and the whole gradient goes through the sums.
        remainders = realised((exact - sums).detach().to(sums.dtype))

        def forgetting(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            sample, head = only_if_many(b, batch), only_if_many(h, heads)
            i, j = inside(q_idx, length), inside(kv_idx, length)
            remainder = remainders[sample, head, i] - remainders[sample, head, j]
            return score + ((query_sums[sample, head, i] - key_sums[sample, head, j]) + remainder)

        return forgetting

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Sums as a product with a triangle of ones."""
        gates = self.log_gates.to(scores.dtype)
        sums = gates @ torch.ones(gates.shape[-1], gates.shape[-1], dtype=gates.dtype, device=gates.device).triu()
        return scores + (sums[..., i, None] - sums[..., None, j])

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) of the gates."""
        return self.log_gates.shape[0], self.log_gates.shape[1]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Every query and key needs its gate."""
        for what, end in (("queries", q_end), ("keys", kv_end)):
            if end is not None and end > self.log_gates.shape[-1]:
                remedy = "pass the gates of all positions, those of cached keys too"
                checks.fail(self.name, f"the {what} must end within the {self.log_gates.shape[-1]} gates", end, remedy)


def _example(batch: int, heads: int, length: int, device: str) -> Tensor:
    gates = torch.randn(batch, heads, length, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.logsigmoid(gates + 2).to(device)
