"""Score: what is done to ``scale * q . k`` before the mask and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.documents import check_total, document_and_start, document_total
from attn_mods.entry import Entry, entry_name
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Frame, Offset
from attn_mods.parameters import Parameterised

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""``score_mod(score, b, h, q_idx, kv_idx)``: 0-d tensors to the new score."""


class Score(Parameterised):
    """Base of all scores: subclass it as a frozen dataclass, write ``score_mod`` and ``dense``.

    ``a >> b`` applies a, then b. Scores act on ``scale * q . k`` before masking.

    Attributes:
        entry: Metadata of a score of the catalogue.
        frame: "self" if i and j are positions of one sequence, "cross" if of two, "keys" if i is not read.
        additive: Whether the score is ``score + bias(b, h, i, j)``.
    """

    entry: ClassVar[Entry]
    frame: ClassVar[Frame] = "self"
    additive: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "entry" in cls.__dict__:
            cls.entry = replace(cls.entry, name=entry_name(cls.__name__), kind="score", build=cls)

    @property
    def name(self) -> str:
        """The entry's name, or the class name of what has no entry."""
        entry = getattr(self, "entry", None)
        return entry.name if entry is not None else entry_name(type(self).__name__)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule as FlexAttention takes it.

        Args:
            backend: Name of the backend that will run it; a score may have a form tuned for one.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score_mod()")

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The same on a whole matrix, written independently of the rule, in the dtype of ``scores``.

        Args:
            scores: ``scale * q . k``, float [B, H, q, kv].
            i: Absolute query positions, int64 [q].
            j: Absolute key positions, int64 [kv].

        Returns:
            The new scores, [B, H, q, kv].
        """
        raise NotImplementedError(f"{type(self).__name__} must define dense()")

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) that the parameters ask for; 1 where the rule does not depend on the axis."""
        return 1, 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Raise if the parameters do not describe these positions (ends as in ``Mask.check_lengths``)."""

    def shift(self, q: Offset = 0, kv: Offset = 0) -> Score:
        """The score whose first query is at position ``q`` and first key at ``kv``: i = q_idx + q, j = kv_idx + kv."""
        return ShiftedScore(self, checks.offset(self.name, "q", q), checks.offset(self.name, "kv", kv))

    def per_document(self, cu_seqlens: Tensor, cu_seqlens_kv: Tensor | None = None) -> Score:
        """The score at positions counted from each document's first token, and -inf between documents.

        A Recipe's ``per_document`` hides other documents by the mask instead, which skips their blocks.

        Args:
            cu_seqlens: Document boundaries of the queries, integer [documents + 1], from 0 to the length.
            cu_seqlens_kv: Those of the keys if they are packed otherwise (cross attention); None = the same.
        """
        return PerDocumentScore(self, cu_seqlens, cu_seqlens_kv)

    @staticmethod
    def from_score_mod(score_mod: ScoreMod, *, B: int = 1, H: int = 1, frame: Frame = "self", name: str = "") -> Score:
        """A user's rule as a score.

        Args:
            score_mod: ``score_mod(score, b, h, q_idx, kv_idx) -> score``.
            B: Batch size if the rule depends on b.
            H: Number of query heads if it depends on h.
            frame: What q_idx means, see ``attn_mods.mask.Frame``.
            name: Name in messages; the function's own if empty.
        """
        return UserScore(score_mod, B, H, frame, name or getattr(score_mod, "__name__", "user_score"))

    def __rshift__(self, other: Score) -> Score:
        return Chain(self, other) if isinstance(other, Score) else NotImplemented


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
    def frame(self) -> Frame:  # type: ignore[override]
        """ "self" if any part is, else "cross" if any part is."""
        frames = {self.first.frame, self.second.frame}
        return "self" if "self" in frames else "cross" if "cross" in frames else "keys"

    @property
    def additive(self) -> bool:  # type: ignore[override]
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
    def frame(self) -> Frame:  # type: ignore[override]
        """The frame of the score inside."""
        return self.score.frame

    @property
    def additive(self) -> bool:  # type: ignore[override]
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
        moved_q = None if q_end is None or isinstance(self.q, Tensor) else q_end + self.q
        moved_kv = None if kv_end is None or isinstance(self.kv, Tensor) else kv_end + self.kv
        self.score.check_lengths(moved_q, moved_kv)


@dataclass(frozen=True, eq=False)
class PerDocumentScore(ScoreWrapper):
    """``score.per_document(cu_seqlens)``: positions counted from each document's start, -inf between documents.

    ``isolated`` is False only where a mask already hides other documents.
    """

    score: Score
    cu_seqlens: Tensor
    cu_seqlens_kv: Tensor | None = None
    isolated: bool = True
    total: int | None = field(init=False, repr=False, default=None)
    total_kv: int | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        kv_side = self.cu_seqlens if self.cu_seqlens_kv is None else self.cu_seqlens_kv
        object.__setattr__(self, "total", checks.boundaries("per_document", "cu_seqlens", self.cu_seqlens))
        object.__setattr__(self, "total_kv", checks.boundaries("per_document", "cu_seqlens_kv", kv_side))

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """ "cross" with boundaries of its own for the keys, else "self"."""
        return "self" if self.cu_seqlens_kv is None else "cross"

    def _sides(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        kv_side = self.cu_seqlens if self.cu_seqlens_kv is None else self.cu_seqlens_kv
        q_total, kv_total = document_total(self.name, self.total), document_total(self.name, self.total_kv)
        return document_and_start(self.cu_seqlens, q_total), document_and_start(kv_side, kv_total)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule at positions counted from the document's start."""
        rule = self.score.score_mod(backend)
        (q_document, q_start), (kv_document, kv_start) = self._sides()

        def per_document_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return rule(score, b, h, q_idx - q_start[q_idx], kv_idx - kv_start[kv_idx])

        def isolated_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            inside = per_document_score(score, b, h, q_idx, kv_idx)
            return torch.where(q_document[q_idx] == kv_document[kv_idx], inside, float("-inf"))

        return isolated_score if self.isolated else per_document_score

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The score inside at positions counted from the document's start."""
        (q_document, q_start), (kv_document, kv_start) = self._sides()
        inside = self.score.dense(scores, i - q_start[i], j - kv_start[j])
        if not self.isolated:
            return inside
        return inside.masked_fill(q_document[i][:, None] != kv_document[j][None, :], float("-inf"))

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The keys end where their boundaries end."""
        check_total(self.name, "cu_seqlens", self.total_kv, kv_end)


@dataclass(frozen=True, eq=False)
class UserScore(Score):
    """A user's score_mod."""

    rule: ScoreMod
    B: int = 1
    H: int = 1
    rule_frame: Frame = "self"
    rule_name: str = "user_score"

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """As the user said."""
        return self.rule_frame

    @property
    def name(self) -> str:
        """The function's name."""
        return self.rule_name

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule itself."""
        return self.rule

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) as the user said."""
        return self.B, self.H

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The rule at every position: there is nothing else to go by."""
        batch, heads = (torch.arange(n, device=scores.device) for n in scores.shape[:2])
        return evaluate_everywhere(self.rule, batch, heads, i, j, scores)
