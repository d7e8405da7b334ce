"""Whether a way is right, before it is timed: output and gradients against float64 by the two-errors rule.

Allowed is twice the error that dense attention makes in the same dtype, four times that for gradients
(``attn_mods.backend_checks``). The truth is found for some queries at a time, since float64 attention holds a matrix;
sequences longer than ``LONGEST`` are checked at that length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Mask, Recipe
from attn_mods.backend_checks import GRADIENT_SLACK, Problem, Rating, plain_attention, rate
from attn_mods.mask import Frame
from benchmarks.attention.cases import Group
from benchmarks.attention.ways import Attend, Task

LONGEST = {"cpu": 2048, "cuda": 16_384}
MOST_PAIRS = 2**25
"""Queries times keys, of all heads and samples, that the truth is found for at a time; a matrix of them is 256 MB."""

LEAVES = ("q", "k", "v")
AttendRows = Callable[[Recipe, Tensor, Tensor, Tensor, int | None], Tensor]


@dataclass(frozen=True, eq=False)
class DenseOnce(Mask):
    """A mask whose dense form is computed once, and sliced for a few queries at a time.

    Attributes:
        mask: The mask.
        q_end: One past the last query position that is asked for.
        kv_end: The same of keys.
    """

    mask: Mask
    q_end: int
    kv_end: int
    matrix: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mask.check_lengths(self.q_end, self.kv_end)
        object.__setattr__(self, "matrix", self.mask.dense(self.q_end, self.kv_end))

    @property
    def name(self) -> str:
        """The name of the mask."""
        return self.mask.name

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """The frame of the mask."""
        return self.mask.frame

    def batch_and_heads(self) -> tuple[int, int]:
        """Those of the mask."""
        return self.mask.batch_and_heads()

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The first rows and columns."""
        if q_len > self.q_end or kv_len > self.kv_end:
            made = f"{self.q_end} x {self.kv_end}"
            raise ValueError(f"{self.name}: made for {made}, asked for {q_len} x {kv_len}; make it for as many")
        return self.matrix[..., :q_len, :kv_len]


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        length: Queries of the sequence that was checked.
        out: Rating of the output.
        gradients: Rating of the gradients of q, k and v; None if they were not asked for.
    """

    length: int
    out: Rating
    gradients: Rating | None

    @property
    def wrong(self) -> str | None:
        """What is wrong, or None."""
        for name, rating in (("output", self.out), ("gradients", self.gradients)):
            if rating is not None and not rating.is_ok:
                return f"{name}: relative error {rating.error:.1e} of {rating.name}, at most {rating.allowed:.1e}"
        return None

    @property
    def is_finite(self) -> bool:
        """Whether the errors are numbers that a record can hold: what holds an infinity or a NaN has none."""
        return all(math.isfinite(each.error) for each in (self.out, self.gradients) if each is not None)

    def described(self) -> dict[str, Any]:
        """The part of a record."""
        described: dict[str, Any] = {
            "length": self.length,
            "out_error": self.out.error,
            "out_allowed": self.out.allowed,
        }
        if self.gradients is not None:
            described |= {"gradients_error": self.gradients.error, "gradients_allowed": self.gradients.allowed}
        return described


class Gate:
    """The truth about one group, found once.

    Attributes:
        group: What is checked.
        gradients: Whether the truth about the gradients is found too; without it no training task can be checked.
        is_shortened: Whether that is a shorter sequence than the one that is timed.
    """

    def __init__(self, group: Group, device: str, gradients: bool = True) -> None:
        self.gradients = gradients
        self.group = group.shortened(LONGEST[device])
        self.is_shortened = self.group != group
        self.recipe = self.group.recipe(device)
        self.offset = self.group.q_offset(self.recipe)
        *self.inputs, self.gradient = self.group.inputs(device, seed=1)
        recipe = self._with_dense_mask()
        self._plain = self._outcome(recipe, self._plain_attention)
        self._expected = self._outcome(recipe, self._reference)

    def task(self, training: bool) -> Task:
        """The task that a way is checked on."""
        q, k, v = (each.detach().clone().requires_grad_(training) for each in self.inputs)
        return Task(self.recipe, q, k, v, self.offset)

    def check(self, attend: Attend, task: Task) -> Verdict:
        """Hold a way's output, and its gradients if the task's inputs require them, against float64."""
        training = task.q.requires_grad
        with torch.set_grad_enabled(training):
            out = attend(task.q, task.k, task.v)
        got = {"out": out.detach()}
        if training:
            got |= dict(zip(LEAVES, torch.autograd.grad(out, (task.q, task.k, task.v), self.gradient), strict=True))
        triples = {name: (tensor, self._plain[name], self._expected[name]) for name, tensor in got.items()}
        dtype = task.q.dtype
        gradients = {name: triples[name] for name in LEAVES} if training else None
        return Verdict(
            self.group.shape.q_len,
            rate({"out": triples["out"]}, dtype),
            None if gradients is None else rate(gradients, dtype, GRADIENT_SLACK),
        )

    def _with_dense_mask(self) -> Recipe:
        mask, shape = self.recipe.mask, self.group.shape
        if mask is None:
            return self.recipe
        return replace(self.recipe, mask=DenseOnce(mask, (self.offset or 0) + shape.q_len, shape.kv_len))

    def _outcome(self, recipe: Recipe, attend: AttendRows) -> dict[str, Tensor]:
        shape = self.group.shape
        # Gradients of some queries at a time are added up: in the dtype of the inputs each sum would be rounded.
        leaves = [each.detach().double().requires_grad_(self.gradients) for each in self.inputs]
        rows = max(1, MOST_PAIRS // (shape.B * shape.Hq * shape.kv_len))
        parts = []
        for start in range(0, shape.q_len, rows):
            offset = self.offset if rows >= shape.q_len else (self.offset or 0) + start
            out = attend(recipe, leaves[0][:, :, start : start + rows], leaves[1], leaves[2], offset)
            if self.gradients:
                torch.autograd.backward(out, self.gradient[:, :, start : start + rows].to(out.dtype))
            parts.append(out.detach())
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        return {"out": torch.cat(parts, 2), **dict(zip(LEAVES, gradients, strict=self.gradients))}

    def _plain_attention(self, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, offset: int | None) -> Tensor:
        q, k, v = (each.to(self.group.shape.torch_dtype) for each in (q, k, v))
        return plain_attention(Problem(recipe, q, k, v, offset))[0]

    def _reference(self, recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, offset: int | None) -> Tensor:
        return am.reference(q, k, v, recipe, q_offset=offset)
