"""Keys lose score in proportion to their distance, with one slope per query head.

Rule: score -> score + slope[h] * (j - i), or the same with -|i - j| or with j alone.
From: Press et al., "Train Short, Test Long", section 3; slopes for any head count as in the authors' repository.
Trap: for 12 heads the published slopes are those of 8 heads followed by every other one of 16, not 2^(-8h/12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import per_head
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Frame
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class Alibi(Score):
    """score -> score + slope[h] * distance.

    Args:
        num_heads: Query heads H, >= 1: the published slopes, 2^(-8(h + 1) / H) if H is a power of two. Otherwise those
            of the largest power of two below H, followed by slopes 0, 2, 4, ... of twice that power.
        form: "signed" adds slope * (j - i), "absolute" adds -slope * |i - j|, "key_only" adds slope * j. All three
            give a causal query the same output; "key_only" moves row i and its lse by slope * i, and a sink with it.
        slopes: Slopes of your own instead of ``num_heads``, float [H] or [1] or 0-d; may be learned. Positive ones
            favour near keys; all are finite.

    Raises:
        ValueError: Neither or both of num_heads and slopes, num_heads < 1, NaN or an infinite slope, an unknown form.
        TypeError: num_heads is not an int, slopes is not a float tensor.

    References:
        Press et al. 2021, arXiv 2108.12409, section 3; github.com/ofirpress/attention_with_linear_biases,
        fairseq/models/transformer.py. "key_only" is how that code, BLOOM and MPT compute it.
    """

    additive = True

    num_heads: int | None = None
    form: str = "signed"
    slopes: Tensor | None = None

    entry = Entry(
        title="ALiBi",
        summary="Keys lose score in proportion to their distance, with one slope per query head.",
        papers=(Paper("Train Short, Test Long: Attention with Linear Biases", "2108.12409", where="section 3"),),
        models=(Model("BLOOM"), Model("MPT 7B", field="attn_config.alibi")),
        tags=frozenset({"position", "additive", "decoder"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Alibi(num_heads=4)),
            "three_heads": Case(lambda q_len, kv_len, device: Alibi(num_heads=3)),
            "six_heads": Case(lambda q_len, kv_len, device: Alibi(num_heads=6)),
            "absolute": Case(lambda q_len, kv_len, device: Alibi(num_heads=2, form="absolute")),
            "key_only": Case(lambda q_len, kv_len, device: Alibi(num_heads=2, form="key_only")),
            "slopes": Case(lambda q_len, kv_len, device: Alibi(slopes=torch.tensor([0.4, -0.03, 0.0], device=device))),
            "one_slope": Case(lambda q_len, kv_len, device: Alibi(slopes=torch.tensor([0.5], device=device))),
            "bench": Case(lambda q_len, kv_len, device: Alibi(num_heads=16)),
        },
        traps=(
            "Head counts that are no power of two: many ports use one geometric series, which is another model.",
            "With keys after the query in sight, the signed form rewards them; use the absolute one.",
            "slope * j in bfloat16 is off by whole units from position 256 on; here it is computed in float32.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass num_heads=16 for the published slopes, or slopes=tensor for your own"
        if (self.num_heads is None) == (self.slopes is None):
            got = "neither" if self.slopes is None else "both"
            checks.fail(self.name, "one of num_heads and slopes is needed", got, remedy)
        if self.num_heads is not None:
            checks.static_integer_field(self, "num_heads", 1, remedy)
        if self.slopes is not None:
            slopes = checks.learnable(self.name, "slopes", self.slopes, ndim=(1,), remedy=remedy)
            object.__setattr__(self, "slopes", slopes)
        if self.form not in ("signed", "absolute", "key_only"):
            remedy = 'use "signed", "absolute" or "key_only"'
            checks.fail(self.name, "form must be one of the three", repr(self.form), remedy)

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """ "keys" where only j is read."""
        return "keys" if self.form == "key_only" else "self"

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule; published slopes are computed from h, which kernels prefer to a table."""
        slopes, heads = self.slopes, self.batch_and_heads()[1]

        def slope(h: Tensor) -> Tensor:
            return _published_slope(h, heads) if slopes is None else per_head(slopes, h)

        def alibi(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + slope(h) * (kv_idx - q_idx)

        def alibi_absolute(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score - slope(h) * (kv_idx - q_idx).abs()

        def alibi_key_only(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + slope(h) * kv_idx

        return {"signed": alibi, "absolute": alibi_absolute, "key_only": alibi_key_only}[self.form]

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Outer product of the list of slopes and the whole matrix of positions."""
        if self.slopes is None:
            slopes = scores.new_tensor(published_slopes(self.batch_and_heads()[1]))
        else:
            slopes = self.slopes.to(scores.dtype)
        towards = torch.cdist(i[:, None].to(scores.dtype), j[:, None].to(scores.dtype), p=1)
        if self.form == "signed":
            towards = torch.where(j[None, :] > i[:, None], -towards, towards)
        elif self.form == "key_only":
            towards = -j.to(scores.dtype)[None, :]
        return scores - slopes[:, None, None] * towards

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per slope."""
        return 1, self.num_heads or (1 if self.slopes is None else self.slopes.shape[0])


def published_slopes(num_heads: int) -> list[float]:
    """The authors' slopes for any number of heads, the way their code lists them."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes if power == num_heads else slopes + published_slopes(2 * power)[0::2][: num_heads - power]


def _published_slope(h: Tensor, num_heads: int) -> Tensor:
    """The same from the index of the head, in float32: kernels compute it faster than they read a table."""
    power = 1 << (num_heads.bit_length() - 1)
    head = h.to(torch.float32)
    exponent = torch.where(h < power, (head + 1) * (8 / power), (2 * (head - power) + 1) * (4 / power))
    return torch.exp2(-exponent)
