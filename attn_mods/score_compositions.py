"""Scores made of scores: one after the other, at moved positions, inside each document."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.documents import Documents
from attn_mods.mask import Frame, Offset, joint_frame, moved_end
from attn_mods.score import Score, ScoreMod


@dataclass(frozen=True, eq=False)
class Chain(Score):
    """``first >> second``: first, then second."""

    first: Score
    second: Score

    @property
    def name(self) -> str:
        """Both names in order."""
        return f"({self.first.name} >> {self.second.name})"

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """That of both together."""
        return joint_frame(self.first.frame, self.second.frame)

    @property
    def additive(self) -> bool:  # type: ignore[override]  # of each instance
        """Whether both are."""
        return self.first.additive and self.second.additive

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The second rule on the result of the first."""
        first, second = self.first.score_mod(backend), self.second.score_mod(backend)

        def chain(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return second(first(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

        return chain

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The second on the result of the first."""
        return self.second.dense(self.first.dense(scores, i, j), i, j)

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H), broadcast over the parts."""
        (first_batch, first_heads), (second_batch, second_heads) = (
            self.first.batch_and_heads(),
            self.second.batch_and_heads(),
        )
        return (
            checks.broadcast(self.name, "B", first_batch, second_batch),
            checks.broadcast(self.name, "H", first_heads, second_heads),
        )

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Each part checks for itself."""
        self.first.check_lengths(q_end, kv_end)
        self.second.check_lengths(q_end, kv_end)


class ScoreWrapper(Score):
    """A score made from one other score."""

    score: Score

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """The frame of the score inside."""
        return self.score.frame

    @property
    def additive(self) -> bool:  # type: ignore[override]  # of each instance
        """Whether the score inside is."""
        return self.score.additive

    @property
    def name(self) -> str:
        """The name inside."""
        return self.score.name

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) of the score inside."""
        return self.score.batch_and_heads()


@dataclass(frozen=True, eq=False)
class ShiftedScore(ScoreWrapper):
    """``score.shift(q, kv)``: the score seen from first query position q and first key position kv."""

    score: Score
    q: Offset = 0
    kv: Offset = 0

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule at moved positions."""
        rule, q, kv = self.score.score_mod(backend), self.q, self.kv

        def shifted_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return rule(score, b, h, q_idx + q, kv_idx + kv)

        return shifted_score

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The score inside at moved positions."""
        return self.score.dense(scores, i + self.q, j + self.kv)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The score inside checks the moved positions."""
        self.score.check_lengths(moved_end(q_end, self.q), moved_end(kv_end, self.kv))


@dataclass(frozen=True, eq=False)
class PerDocumentScore(ScoreWrapper):
    """``score.per_document(cu_seqlens)``: positions counted from each document's start, -inf between documents.

    A position below 0 is in no document. ``isolated`` is False only where a mask already hides other documents.
    """

    score: Score
    cu_seqlens: Tensor
    cu_seqlens_kv: Tensor | None = None
    isolated: bool = True
    documents: Documents = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "documents", Documents(self.cu_seqlens, self.cu_seqlens_kv))

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """ "cross" with boundaries of its own for the keys, else "self"."""
        return "self" if self.cu_seqlens_kv is None else "cross"

    @property
    def name(self) -> str:
        """The name inside."""
        return f"{self.score.name}.per_document"

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule at positions counted from the document's start."""
        rule = self.score.score_mod(backend)
        (q_document, q_start), (kv_document, kv_start) = self.documents.sides(self.name)

        def per_document_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            i, j = q_idx.clamp(min=0), kv_idx.clamp(min=0)
            return rule(score, b, h, i - q_start[i], j - kv_start[j])

        def isolated_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            i, j = q_idx.clamp(min=0), kv_idx.clamp(min=0)
            inside = rule(score, b, h, i - q_start[i], j - kv_start[j])
            same = (q_document[i] == kv_document[j]) & (q_idx >= 0) & (kv_idx >= 0)
            return torch.where(same, inside, float("-inf"))

        return isolated_score if self.isolated else per_document_score

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The score inside on the pairs of each document, -inf (or as it was, if not isolated) everywhere else."""
        out = torch.full_like(scores, float("-inf")) if self.isolated else scores.clone()
        for q_start, q_stop, kv_start, kv_stop in self.documents.spans():
            rows = ((i >= q_start) & (i < q_stop)).nonzero()[:, 0]
            columns = ((j >= kv_start) & (j < kv_stop)).nonzero()[:, 0]
            if rows.numel() and columns.numel():
                pairs = scores.index_select(-2, rows).index_select(-1, columns)
                inside = self.score.dense(pairs, i[rows] - q_start, j[columns] - kv_start)
                out[..., rows[:, None], columns] = inside
        return out

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The documents hold all positions, and the score inside checks each of them."""
        self.documents.check_lengths(self.name, q_end, kv_end, self.score.check_lengths)
