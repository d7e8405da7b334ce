"""Whether a way is right, before it is timed: output and gradients against float64 by the two-errors rule.

Allowed is twice the error that dense attention makes in the same dtype, four times that for gradients
(``attn_mods.backend_checks``). Longer sequences than ``LENGTH`` are checked at ``LENGTH``: float64 attention holds the
whole matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import attn_mods as am
from attn_mods.backend_checks import GRADIENT_SLACK, Problem, Rating, plain_attention, rate
from benchmarks.attention.cases import Group
from benchmarks.attention.ways import Attend, Task

LENGTH = 2048
LEAVES = ("q", "k", "v")


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
        is_shortened: Whether that is a shorter sequence than the one that is timed.
    """

    def __init__(self, group: Group, device: str) -> None:
        self.group = group.shortened(LENGTH)
        self.is_shortened = self.group != group
        self.recipe = self.group.recipe(device)
        self.offset = self.group.q_offset(self.recipe)
        *self.inputs, self.gradient = self.group.inputs(device, seed=1)
        self._plain = self._outcome(self._plain_attention)
        self._expected = self._outcome(self._reference)

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

    def _outcome(self, attend: Attend) -> dict[str, Tensor]:
        leaves = [each.detach().clone().requires_grad_() for each in self.inputs]
        out = attend(*leaves)
        gradients = torch.autograd.grad(out, leaves, self.gradient.to(out.dtype))
        return {"out": out.detach(), **dict(zip(LEAVES, gradients, strict=True))}

    def _plain_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain_attention(Problem(self.recipe, q, k, v, self.offset))[0]

    def _reference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return am.reference(q, k, v, self.recipe, q_offset=self.offset)
