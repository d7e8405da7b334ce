"""Scores are squeezed smoothly into (-cap, cap).

Rule: score -> cap * tanh(score / cap).
From: Gemma Team, "Gemma 2", section 2; Grok-1.
Trap: the cap acts on the scaled scores and before the mask; capping masked scores would let hidden keys back in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.approximate_tanh import approximate_tanh, lower_to_the_instruction
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class Softcap(Score):
    """score -> cap * tanh(score / cap).

    Args:
        cap: Bound of the scores' magnitude, > 0; in units of ``scale * q . k``.
        approximate: Whether FlexAttention in float16 and bfloat16 may take the processor's own tanh, which is off by
            0.05 % at most, by NVIDIA's figure. A permission: in float32, and where the lse is returned, tanh is
            computed in full. The flash kernels take the tanh that their package was written with.

    Raises:
        ValueError: cap <= 0, or beyond what float32 holds.
        TypeError: cap is not a number, or approximate no bool.

    References:
        Gemma Team 2024, arXiv 2408.00118, section 2 (logit soft-capping).
    """

    frame = "keys"

    cap: float
    approximate: bool = False

    entry = Entry(
        title="Softcap",
        summary="Scores are squeezed smoothly into (-cap, cap).",
        papers=(Paper("Gemma 2: Improving Open Language Models at a Practical Size", "2408.00118", where="section 2"),),
        models=(Model("Gemma 2", field="attn_logit_softcapping"), Model("Grok-1")),
        tags=frozenset({"bounded", "decoder"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Softcap(cap=1.0)),
            "approximate": Case(lambda q_len, kv_len, device: Softcap(cap=50.0, approximate=True)),
            "bench": Case(lambda q_len, kv_len, device: Softcap(cap=50.0)),
        },
        traps=("The cap comes after the scale and before the mask; with a bias the order must be written, with >>.",),
    )

    def __post_init__(self) -> None:
        remedy = "pass a positive number such as 50.0, or leave the score out for no cap"
        checks.number_field(self, "cap", remedy)
        if self.cap < checks.SMALLEST_FLOAT:
            checks.fail(self.name, "cap must be positive, also in float32", self.cap, remedy)
        checks.boolean(self.name, "approximate", self.approximate, "pass True or False")

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule cap * tanh(score / cap), or a form of it that Triton computes faster.

        The sigmoid is off by about 1e-7 of the cap, which float32 would show and half types do not.
        """
        # As text: a compiler takes a captured float that differs from the last one for a variable, and flex refuses it.
        text = repr(self.cap)

        def softcap(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            cap = float(text)
            return cap * torch.tanh(score / cap)

        def softcap_by_sigmoid(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            cap = float(text)
            return 2 * cap * torch.sigmoid(score * (2 / cap)) - cap

        def softcap_by_instruction(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            cap = float(text)
            tanh: Tensor = approximate_tanh(score / cap)
            return cap * tanh

        if backend not in ("flex_bfloat16", "flex_float16"):
            return softcap
        if not self.approximate:
            return softcap_by_sigmoid
        lower_to_the_instruction()
        return softcap_by_instruction

    def softcap(self) -> float:
        """The cap."""
        return self.cap

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The same through the exponential function."""
        return self.cap * (1 - 2 / (torch.exp(2 * scores / self.cap) + 1))
