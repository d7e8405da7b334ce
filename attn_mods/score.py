"""Score: what is done to ``scale * q . k`` before the mask and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Entry, entry_name
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Frame, Offset
from attn_mods.parameters import Parameterised
from attn_mods.user_function import UserFunction

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""``score_mod(score, b, h, q_idx, kv_idx)``: 0-d tensors to the new score."""


class Score(Parameterised):
    """Base of all scores: subclass it as a frozen dataclass, write ``score_mod`` and ``dense``.

    ``a >> b`` applies a, then b. Scores act on ``scale * q . k`` before masking.

    Attributes:
        entry: Metadata of a score of the catalogue.
        frame: What i means to the rule, see ``attn_mods.mask.Frame``.
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
            backend: Name of the backend that will run it, for which a score may have a form of its own;
                "flex_float16" and "flex_bfloat16" are flex on a GPU where it returns those dtypes alone, no lse: a
                form need be no more exact than they are.
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

    def unsupported_by(self, backend: str) -> str | None:
        """Why the backend of that name cannot compute this score, whatever the call; None if it can.

        Asked before ``score_mod(backend)``, of the parts of a score too.
        """
        parts = (part for part in self.parts().values() if isinstance(part, Score))
        return next((reason for reason in (part.unsupported_by(backend) for part in parts) if reason), None)

    def softcap(self) -> float | None:
        """The cap of what is ``cap * tanh(score / cap)`` and nothing else, which flash kernels take; or None."""
        return None

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) that the parameters ask for; 1 where the rule does not depend on the axis."""
        return 1, 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Raise if the parameters do not describe these positions (ends as in ``Mask.check_lengths``)."""

    def shift(self, q: Offset = 0, kv: Offset = 0) -> Score:
        """The score whose first query is at position ``q`` and first key at ``kv``: i = q_idx + q, j = kv_idx + kv."""
        moved_q, moved_kv = checks.offset(self.name, "q", q), checks.offset(self.name, "kv", kv)
        return score_compositions.ShiftedScore(self, moved_q, moved_kv)

    def per_document(self, cu_seqlens: Tensor, cu_seqlens_kv: Tensor | None = None) -> Score:
        """The score at positions counted from each document's first token, and -inf between documents.

        A Recipe's ``per_document`` hides other documents by the mask instead, which skips their blocks.

        Args:
            cu_seqlens: Document boundaries of the queries, integer [documents + 1], from 0 to the length.
            cu_seqlens_kv: Those of the keys if they are packed otherwise (cross attention); None = the same.
        """
        return score_compositions.PerDocumentScore(self, cu_seqlens, cu_seqlens_kv)

    @staticmethod
    def from_score_mod(
        score_mod: ScoreMod, *, B: int | None = None, H: int | None = None, frame: Frame = "self", name: str = ""
    ) -> Score:
        """A user's rule as a score.

        Gradients flow into tensors that the rule refers to. ``nn.Attention`` does not register them: only a score with
        tensor fields of its own has parameters there.

        Args:
            score_mod: ``score_mod(score, b, h, q_idx, kv_idx) -> score``.
            B: Batch size, >= 1; if None and the rule reads b, that of q.
            H: Number of query heads, likewise for h.
            frame: What q_idx means, see ``attn_mods.mask.Frame``.
            name: Name in messages; the function's own if empty.

        Raises:
            TypeError: A score_mod that cannot be called, B or H that is no int.
            ValueError: B or H below 1, an unknown frame.
        """
        return UserScore(score_mod, B, H, frame, name or getattr(score_mod, "__name__", "user_score"))

    def __bool__(self) -> NoReturn:
        remedy = "apply one score after another with >>"
        got = "`and`, `or`, `not` or `if` on a score"
        checks.fail(self.name, "a score has no truth value", got, remedy, TypeError)

    def __rshift__(self, other: Score) -> Score:
        return score_compositions.Chain(self, other) if isinstance(other, Score) else NotImplemented


@dataclass(frozen=True, eq=False)
class UserScore(UserFunction, Score):  # type: ignore[override]  # a frame of each instance
    """A user's score_mod."""

    def takes_a_score(self) -> bool:
        """It does."""
        return True

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """The rule itself."""
        return self.rule

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The rule at every position: there is nothing else to go by."""
        batch, heads = (torch.arange(n, device=scores.device) for n in scores.shape[:2])
        return evaluate_everywhere(self.rule, batch, heads, i, j, scores)


# The compositions are scores themselves: their module imports this one, so it can name them only once Score exists.
from attn_mods import score_compositions  # noqa: E402
