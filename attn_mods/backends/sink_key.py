"""The sink as one more key, for a kernel that returns no lse: its score is the sink, its value 0, everyone sees it.

The key stands after the last one, so no position moves. The rules see the last real position in its place: their tables
end there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attn_mods import checks
from attn_mods.algebra import Wrapper
from attn_mods.backends.base import Call
from attn_mods.mask import Frame, Mask, MaskMod
from attn_mods.realised import realised
from attn_mods.score import Score, ScoreMod


def with_sink_key(call: Call) -> Call:
    """The same attention without a sink, over one key more."""
    recipe, kv_len = call.recipe, call.k.shape[2]
    if recipe.sink is None:
        return call
    sink = realised(recipe.sink.expand(call.q.shape[1]).contiguous())
    mask = None if recipe.mask is None else MaskWithSinkKey(recipe.mask, kv_len)
    score = ScoreWithSinkKey(recipe.score, sink, kv_len)
    return replace(
        call,
        k=pad(call.k, (0, 0, 0, 1)),
        v=pad(call.v, (0, 0, 0, 1)),
        recipe=replace(recipe, mask=mask, score=score, sink=None),
        block_mask=None,
    )


@dataclass(frozen=True, eq=False)
class MaskWithSinkKey(Wrapper):
    """The mask of ``kv_len`` keys, and one key more that everyone sees."""

    mask: Mask
    kv_len: int

    def mask_mod(self) -> MaskMod:
        """The rule, and True at position kv_len."""
        mask, kv_len = self.mask.mask_mod(), self.kv_len

        def mask_with_sink_key(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return mask(b, h, q_idx, torch.clamp(kv_idx, max=kv_len - 1)) | (kv_idx >= kv_len)

        return mask_with_sink_key

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The dense mask and a column of ones."""
        return pad(self.mask.dense(q_len, kv_len - 1), (0, 1), value=True)

    def has_own_tile_states(self) -> bool:
        """Never: a closed form does not know the key."""
        return False


@dataclass(frozen=True, eq=False)
class ScoreWithSinkKey(Score):
    """The score of ``kv_len`` keys, and the sink at one key more."""

    score: Score | None
    sink: Tensor
    kv_len: int

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """The frame of the score inside."""
        return "keys" if self.score is None else self.score.frame

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule, and the sink at position kv_len."""
        return self.around(None if self.score is None else self.score.score_mod(backend))

    def around(self, inside: ScoreMod | None) -> ScoreMod:
        """The rule, given the rule of the score inside."""
        sink, kv_len = self.sink, self.kv_len

        def sink_key(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return torch.where(kv_idx >= kv_len, sink[h], score)

        if inside is None:
            return sink_key

        def score_with_sink_key(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            scored = inside(score, b, h, q_idx, torch.clamp(kv_idx, max=kv_len - 1))
            return sink_key(scored, b, h, q_idx, kv_idx)

        return score_with_sink_key

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The dense score and a column of the sink."""
        inside = scores[..., :-1] if self.score is None else self.score.dense(scores[..., :-1], i, j[:-1])
        column = self.sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([inside, column], dim=-1)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per sink."""
        batch, heads = (1, 1) if self.score is None else self.score.batch_and_heads()
        return batch, checks.broadcast(self.name, "H", heads, self.sink.shape[0])
