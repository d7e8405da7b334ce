"""A learned bias that falls with distance, logarithmically or as a power.

Rule: score -> score - r1[h] * log(1 + r2[h] * |i - j|), or score - r1[h] * |i - j|^r2[h].
From: Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation".
Trap: the parameters act clamped, to >= 0.01 and the exponent to <= 2, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import per_head
from attn_mods.entry import Case, Entry, Paper
from attn_mods.score import Score, ScoreMod

SMALLEST = 0.01
LARGEST_EXPONENT = 2.0


@dataclass(frozen=True, eq=False)
class Kerple(Score):
    """score -> score - r1[h] * log(1 + r2[h] * |i - j|), or with form "power" score - r1[h] * |i - j|^r2[h].

    Args:
        r1: Strength per query head, float [H] or [1] or 0-d; may be learned. Acts as max(r1, 0.01).
        r2: Rate ("log"), acting as max(r2, 0.01), or exponent ("power"), acting as r2 clamped to [0.01, 2].
        form: "log" or "power". The authors start r1 of "log" and r2 of "power" uniform in [0, 2], the others in
            [0, 1].

    Raises:
        ValueError: An unknown form, a tensor with more than one dimension, NaN or infinity in it.
        TypeError: r1 or r2 is not a float tensor.

    References:
        Chi et al. 2022, arXiv 2205.09921, logarithmic and power variants; bounds as in
        github.com/chijames/KERPLE, megatron/mpu/layers.py.
    """

    additive = True

    r1: Tensor
    r2: Tensor
    form: str = "log"

    entry = Entry(
        title="KERPLE",
        summary="A learned bias that falls with distance, logarithmically or as a power.",
        papers=(
            Paper(
                "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
                "2205.09921",
                where="logarithmic and power variants",
            ),
        ),
        tags=frozenset({"position", "additive", "learned", "decoder"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Kerple(*_example(2, device))),
            "power": Case(lambda q_len, kv_len, device: Kerple(*_example(3, device), form="power")),
            "clamped": Case(
                lambda q_len, kv_len, device: Kerple(
                    torch.tensor([-1.0, 0.0, 0.3], device=device), torch.tensor([-0.5, 0.005, 0.0], device=device)
                )
            ),
            "clamped_power": Case(
                lambda q_len, kv_len, device: Kerple(
                    torch.tensor([-1.0, 0.3], device=device), torch.tensor([2.5, -0.5], device=device), form="power"
                )
            ),
            "shared_rate": Case(
                lambda q_len, kv_len, device: Kerple(_example(2, device)[0], torch.tensor(0.4, device=device))
            ),
            "bench": Case(lambda q_len, kv_len, device: Kerple(*_example(16, device))),
        },
        traps=(
            "A parameter below its bound gets no gradient here. The authors clamp the stored value before every step: "
            "call r1.clamp_(min=0.01) after the optimizer's step for the same.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass one number per query head, or one for all"
        for field in ("r1", "r2"):
            checked = checks.learnable(self.name, field, getattr(self, field), ndim=(1,), remedy=remedy)
            object.__setattr__(self, field, checked)
        if self.form not in ("log", "power"):
            checks.fail(self.name, "form must be one of the two", repr(self.form), 'use "log" or "power"')

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule in float32."""
        r1, r2 = self.r1, self.r2

        def kerple(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            distance = (q_idx - kv_idx).abs()
            rate = per_head(r2, h).clamp(min=SMALLEST)
            return score - per_head(r1, h).clamp(min=SMALLEST) * torch.log(1 + rate * distance)

        def kerple_power(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            distance = (q_idx - kv_idx).abs().to(torch.float32)
            exponent = per_head(r2, h).clamp(SMALLEST, LARGEST_EXPONENT)
            return score - per_head(r1, h).clamp(min=SMALLEST) * distance**exponent

        return kerple if self.form == "log" else kerple_power

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Through log(1 + x), and powers as exponentials of logarithms."""
        distance = torch.cdist(i[:, None].to(scores.dtype), j[:, None].to(scores.dtype), p=1)
        r1, r2 = (torch.clamp_min(value.to(scores.dtype), SMALLEST)[:, None, None] for value in (self.r1, self.r2))
        if self.form == "log":
            return scores - torch.log1p(distance * r2) * r1
        power = torch.exp(torch.log(distance.clamp(min=1)) * r2.clamp(max=LARGEST_EXPONENT))
        return scores - torch.where(distance > 0, power, 0) * r1

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per number."""
        return 1, checks.broadcast(self.name, "H", self.r1.shape[0], self.r2.shape[0])


def _example(heads: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    r1, r2 = (0.1 + torch.rand(2, heads, generator=generator)).to(device).unbind()
    return r1, r2
