"""Recipe: a mask, a score, a sink and a scale, together what one attention layer computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.mask import Frame, Mask, Offset, first_query, joint_frame
from attn_mods.masks.document import Document
from attn_mods.masks.full import Full
from attn_mods.parameters import Parameterised
from attn_mods.score import Score
from attn_mods.score_compositions import PerDocumentScore


@dataclass(frozen=True, eq=False)
class Recipe(Parameterised):
    """What one attention layer computes: softmax over ``score(scale * q . k)`` of the visible keys and the sink.

    Args:
        mask: Which keys a query sees; None = all.
        score: What is done to the scaled scores before masking; None = nothing.
        sink: One more logit per query head in the denominator of the softmax, float [H] or [1]; None = none. It has
            no value vector: ``out' = out * sigmoid(lse - sink)``. -inf is no sink.
        scale: Factor on q . k; None = 1 / sqrt(head dimension).

    Raises:
        TypeError: A mask, score, sink or scale of another type.
        ValueError: A sink of another shape, NaN or infinity in it, a scale that is not finite in float32.
    """

    mask: Mask | None = None
    score: Score | None = None
    sink: Tensor | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and not isinstance(self.mask, Mask):
            remedy = "pass a mask such as masks.Causal(), or wrap a mask_mod with Mask.from_mask_mod"
            checks.fail("recipe", "mask must be a Mask", checks.describe(self.mask), remedy, TypeError)
        if self.score is not None and not isinstance(self.score, Score):
            remedy = "pass a score such as scores.Softcap(cap=50.0), or wrap a score_mod with Score.from_score_mod"
            checks.fail("recipe", "score must be a Score", checks.describe(self.score), remedy, TypeError)
        if self.sink is not None:
            object.__setattr__(self, "sink", checks.sink("recipe", self.sink))
        if self.scale is not None:
            remedy = "pass a finite number, or None for 1 / sqrt(head dimension)"
            object.__setattr__(self, "scale", checks.number("recipe", "scale", self.scale, remedy))

    @staticmethod
    def of(value: Recipe | Mask | Score | None, caller: str = "recipe") -> Recipe:
        """A Mask or a Score alone as a Recipe; None is plain attention.

        Args:
            value: What is taken as a recipe.
            caller: Whose name the message bears.

        Raises:
            TypeError: Anything else, a bare function or a tensor among it.
        """
        if value is None:
            return Recipe()
        if isinstance(value, Recipe):
            return value
        if isinstance(value, Mask):
            return Recipe(mask=value)
        if isinstance(value, Score):
            return Recipe(score=value)
        got = "a BlockMask" if isinstance(value, BlockMask) else checks.describe(value)
        checks.fail(caller, "the recipe must be a Recipe, Mask or Score", got, _how_to_make_one(value), TypeError)

    def __bool__(self) -> NoReturn:
        remedy = "combine their masks with & | ~ and -, their scores with >>"
        got = "`and`, `or`, `not` or `if` on a recipe"
        checks.fail(self.name, "a recipe has no truth value", got, remedy, TypeError)

    @property
    def name(self) -> str:
        """The names of its parts."""
        names = [part.name for part in (self.mask, self.score) if part is not None]
        return " with ".join(names or ["full"]) + ("" if self.sink is None else " and sink")

    @property
    def frame(self) -> Frame:
        """That of mask and score together."""
        return joint_frame(*(part.frame for part in (self.mask, self.score) if part is not None))

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) that mask, score and sink ask for; 1 where nothing depends on the axis."""
        parts = {"mask": self.mask, "score": self.score}
        sizes = {label: part.batch_and_heads() for label, part in parts.items() if part is not None}
        if self.sink is not None:
            sizes["sink"] = 1, self.sink.numel()
        batches, heads = zip(*sizes.values(), strict=True) if sizes else ((), ())
        batch = checks.broadcast(self.name, "B", *batches, parts=tuple(sizes))
        return batch, checks.broadcast(self.name, "H", *heads, parts=tuple(sizes))

    def shift(self, q: Offset = 0, kv: Offset = 0) -> Recipe:
        """Mask and score with their first query at position ``q`` and first key at ``kv``."""
        return replace(
            self,
            mask=None if self.mask is None else self.mask.shift(q, kv),
            score=None if self.score is None else self.score.shift(q, kv),
        )

    def per_document(self, cu_seqlens: Tensor, cu_seqlens_kv: Tensor | None = None) -> Recipe:
        """The recipe within each document, positions counted from the document's first token.

        Args:
            cu_seqlens: Document boundaries of the queries, integer [documents + 1], from 0 to the length.
            cu_seqlens_kv: Those of the keys if they are packed otherwise; None = the same.
        """
        if self.mask is not None:
            mask = self.mask.per_document(cu_seqlens, cu_seqlens_kv)
        elif cu_seqlens_kv is None:
            mask = Document(cu_seqlens)
        else:
            mask = Full().per_document(cu_seqlens, cu_seqlens_kv)
        score = None if self.score is None else PerDocumentScore(self.score, cu_seqlens, cu_seqlens_kv, isolated=False)
        return replace(self, mask=mask, score=score)

    def place(self, q_len: int, kv_len: int, q_offset: Offset | None = None) -> Recipe:
        """This recipe with its first query at ``q_offset``, checked against the lengths.

        Raises:
            ValueError: A "self" rule with q_len != kv_len and no q_offset, or lengths the parameters do not describe.
        """
        offset = first_query(self.name, self.frame, q_len, kv_len, q_offset)
        placed = self if isinstance(offset, int) and offset == 0 else self.shift(q=offset)
        for part in (placed.mask, placed.score):
            if part is not None:
                part.check_lengths(q_len, kv_len)
        return placed

    def flex_kwargs(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        device: torch.device | str | None = None,
        q_offset: Offset | None = None,
        block_size: int | tuple[int, int] = 128,
    ) -> dict[str, Any]:
        """Arguments for ``torch.nn.attention.flex_attention.flex_attention``: score_mod, block_mask and scale.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys; q_len if None.
            device: Where the block mask is made; the parameters' device if None.
            q_offset: Absolute position of the first query.
            block_size: Tokens per block, or (query tokens, key tokens).

        Raises:
            ValueError: The recipe has a sink, which flex_attention has no argument for; lengths or a device that do
                not fit.
            TypeError: A length that is no int, a device that is none.
        """
        if self.sink is not None:
            remedy = "call attn_mods.attention, or take the sink out and apply out * sigmoid(lse - sink) yourself"
            checks.fail(self.name, "flex_attention has no argument for a sink", "a sink", remedy)
        q_len, kv_len = checks.lengths_of_call(self.name, q_len, kv_len)
        placed = self.place(q_len, kv_len, q_offset)
        where = checks.device_of_lists(self.name, placed.device, device)
        block_mask = None
        if placed.mask is not None:
            block_mask = placed.mask.placed_block_mask(q_len, kv_len, device=where, block_size=block_size)
        score_mod = None if placed.score is None else placed.score.score_mod()
        return {"score_mod": score_mod, "block_mask": block_mask, "scale": self.scale}


def _how_to_make_one(value: object) -> str:
    """What to write instead of something that is no recipe."""
    if isinstance(value, Tensor):
        return (
            "pass a table of True = visible as Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: table[q_idx, kv_idx]) "
            "and values to add as Score.from_score_mod(lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx])"
        )
    if isinstance(value, BlockMask):
        return "pass it as block_mask="
    if isinstance(value, type) and issubclass(value, (Mask, Score)):
        return f"make one with {value.__name__}(...)"
    if isinstance(value, str):
        return "make one by name with attn_mods.get(name, ...)"
    return "wrap a function with Mask.from_mask_mod or Score.from_score_mod"
