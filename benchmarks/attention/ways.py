"""The ways to compute a recipe that are compared: backends of ``attention``, and what a user would write by hand."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import attn_mods as am
from attn_mods import Recipe, backends
from attn_mods.backends import plan
from attn_mods.backends.flex import TUNED_MODE

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
BASELINE = "flex_by_hand"
"""What ratios are of: torch's flex_attention compiled in the default mode, with the plain rule, as a user starts."""


@dataclass(frozen=True)
class Task:
    """What is to be computed.

    Attributes:
        recipe: The recipe, its tensors on the device.
        q: Queries; require gradients if those are wanted.
        k: Keys.
        v: Values.
        q_offset: Absolute position of the first query.
    """

    recipe: Recipe
    q: Tensor
    k: Tensor
    v: Tensor
    q_offset: int | None


class Way(ABC):
    """One way to compute attention.

    Attributes:
        name: In records and tables.
        mode: The mode of torch.compile on the device at hand, or None where nothing is compiled by it.
    """

    name: str

    def mode(self, device: str) -> str | None:
        """The mode of torch.compile, None where it compiles nothing."""
        return None

    @abstractmethod
    def refusal(self, task: Task) -> str | None:
        """Why it does not compute the task, or None."""

    @abstractmethod
    def prepared(self, task: Task) -> Attend:
        """The call to be timed; what it compiles it compiles when it is first called."""


class OfBackend(Way):
    """``attn_mods.attention`` held to one backend, as a user calls it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def mode(self, device: str) -> str | None:
        """That of flex plans."""
        return (TUNED_MODE if device == "cuda" else "default") if self.name == "flex" else None

    def refusal(self, task: Task) -> str | None:
        """What explain says."""
        told = am.explain(task.q, task.k, task.v, task.recipe, q_offset=task.q_offset, backend=self.name)
        return next((str(row.reason) for row in told.rows if row.backend == self.name and row.reason is not None), None)

    def prepared(self, task: Task) -> Attend:
        """A call of ``attention``: its checks, its caches and its BlockMask are the user's too."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return am.attention(q, k, v, task.recipe, q_offset=task.q_offset, backend=self.name)

        return attend


class FlexByHand(Way):
    """torch's flex_attention under torch.compile, with the recipe's plain rule and a BlockMask made beforehand."""

    name = BASELINE

    def mode(self, device: str) -> str | None:
        """The default mode."""
        return "default"

    def refusal(self, task: Task) -> str | None:
        """What flex_attention has no argument or no kernel for."""
        if task.recipe.sink is not None:
            return "flex_attention has no argument for a sink"
        if task.q.device.type == "cpu" and any(tensor.requires_grad for tensor in (task.q, task.k, task.v)):
            return "flex_attention has no gradients on a CPU"
        return None

    def prepared(self, task: Task) -> Attend:
        """A compiled function of its own."""
        lengths = task.q.shape[2], task.k.shape[2]
        keywords = task.recipe.flex_kwargs(*lengths, device=task.q.device, q_offset=task.q_offset)
        grouped = task.q.shape[1] != task.k.shape[1]
        compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = compiled(q, k, v, enable_gqa=grouped, **keywords)
            return out

        return attend


class Unfused(Way):
    """softmax(q k^T + bias) v in three steps under torch.compile, with the mask as a matrix of numbers to add."""

    name = "unfused"

    def mode(self, device: str) -> str | None:
        """The default mode."""
        return "default"

    def refusal(self, task: Task) -> str | None:
        """What is no bias."""
        if task.recipe.sink is not None:
            return "it has no sink"
        score = task.recipe.score
        return None if score is None or score.additive else f"the score {score.name} is not an added bias"

    def prepared(self, task: Task) -> Attend:
        """A compiled function of its own; rows that see nothing are shown every key, and set to 0."""
        q_len, kv_len = task.q.shape[2], task.k.shape[2]
        placed = task.recipe.sized(task.q.shape[0], task.q.shape[1]).place(q_len, kv_len, task.q_offset)
        device = task.q.device
        bias = torch.zeros(1, 1, q_len, kv_len, device=device)
        if placed.score is not None:
            i, j = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
            zeros = torch.zeros(1, task.q.shape[1], q_len, kv_len, dtype=torch.float64, device=device)
            bias = placed.score.dense(zeros, i, j).float()
        if placed.mask is not None:
            bias = bias.masked_fill(~placed.mask.dense(q_len, kv_len), -math.inf)
        empty = (bias == -math.inf).all(-1, keepdim=True)
        bias = bias.masked_fill(empty, 0)
        scale = task.recipe.scale or 1 / math.sqrt(task.q.shape[3])
        groups = task.q.shape[1] // task.k.shape[1]

        @torch.compile(fullgraph=True, dynamic=False)
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (k, v))
            weights = torch.softmax((q @ k.mT).float() * scale + bias, -1).to(v.dtype)
            return (weights @ v).masked_fill(empty, 0)

        return attend


WAYS: dict[str, Way] = {
    way.name: way for way in (*(OfBackend(each.name) for each in backends.ALL), FlexByHand(), Unfused())
}


def forget_compiled() -> None:
    """Nothing that was compiled for other lengths is left, so that sizes do not become symbols."""
    torch._dynamo.reset()
    plan._plans.clear()
