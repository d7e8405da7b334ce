"""The ways to compute a recipe that are compared: backends of ``attention``, and what a user would write by hand."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention import SDPBackend
from torch.nn.attention._fa4 import register_flash_attention_fa4
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import attn_mods as am
from attn_mods import Recipe, backends, prepared_calls
from attn_mods.backends import Call, Needs, plan
from attn_mods.backends.flash4 import MODULE as FLASH4
from attn_mods.backends.flex import TUNED_MODE
from attn_mods.backends.packages import installed
from attn_mods.backends.sdpa import mask_form, matrix_of
from attn_mods.dispatch import CallOptions

PLAIN = "plain"
"""As a backend's name: the rule of a score as its paper writes it."""

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
    """

    name: str

    def mode(self, device: str) -> str | None:
        """The mode of torch.compile, None where it compiles nothing."""
        return None

    def holds_matrix(self, has_score: bool) -> bool:
        """Whether it makes a matrix of queries x keys in float32, of a recipe with or without a score."""
        return False

    @contextmanager
    def within(self) -> Iterator[None]:
        """What holds while it is compiled, checked and called: nothing."""
        yield

    def kernel(self, task: Task) -> str | None:
        """What ran, where another chose it; asked after the first call of what was prepared last."""
        return None

    @abstractmethod
    def refusal(self, task: Task) -> str | None:
        """Why it does not compute the task, or None."""

    @abstractmethod
    def prepared(self, task: Task) -> Attend:
        """The call to be timed; what it compiles it compiles when it is first called."""


class OfBackend(Way):
    """``attn_mods.attention`` held to one backend, as a user calls it.

    Args:
        backend: Name of the backend.
        suffix: What tells a call with options of the kernel apart.
        options: Those options.
    """

    def __init__(self, backend: str, suffix: str = "", **options: Any) -> None:
        self.backend = backend
        self.name = backend + suffix
        self.options = options

    def holds_matrix(self, has_score: bool) -> bool:
        """Those that hold the scores, and SDPA where it is handed a bias."""
        return self.backend in ("sdpa_math", "eager") or (has_score and self.backend.startswith("sdpa_"))

    def mode(self, device: str) -> str | None:
        """That of flex plans."""
        return (TUNED_MODE if device == "cuda" else "default") if self.backend.startswith("flex") else None

    def refusal(self, task: Task) -> str | None:
        """What explain says."""
        if self.options and task.q.device.type == "cpu":
            return "a kernel on a CPU has no such option"
        asked: CallOptions = {"q_offset": task.q_offset, "kernel_options": self.options or None}
        told = am.explain(task.q, task.k, task.v, task.recipe, backend=self.backend, **asked)
        rows = (row for row in told.rows if row.backend == self.backend and row.reason is not None)
        return next((str(row.reason) for row in rows), None)

    def prepared(self, task: Task) -> Attend:
        """A call of ``attention``: its checks, its caches and its BlockMask are the user's too."""
        options = self.options or None

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            recipe, offset = task.recipe, task.q_offset
            return am.attention(q, k, v, recipe, q_offset=offset, backend=self.backend, kernel_options=options)

        return attend


class WithFlash4(OfBackend):
    """A backend that calls torch's flash kernel, which is FlashAttention-4 while that is activated.

    Args:
        backend: Name of the backend.
    """

    KERNELS = "benchmarks.attention.flash4_for_torch"

    def __init__(self, backend: str) -> None:
        super().__init__(backend, "_fa4")

    @contextmanager
    def within(self) -> Iterator[None]:
        """FlashAttention-4 in place of torch's own kernel."""
        register = functools.partial(register_flash_attention_fa4, module_path=self.KERNELS)
        torch_attention.register_flash_attention_impl(self.KERNELS, register_fn=register)
        try:
            torch_attention.activate_flash_attention_impl(self.KERNELS)
            yield
        finally:
            torch_attention.restore_flash_attention_impl()

    def refusal(self, task: Task) -> str | None:
        """What the backend refuses; that the package is missing."""
        return super().refusal(task) or (None if installed(FLASH4) else "flash-attn-4 is not installed")


class SdpaByDefault(Way):
    """scaled_dot_product_attention with the kernel torch chooses, for what it has arguments for."""

    name = "sdpa_default"

    def holds_matrix(self, has_score: bool) -> bool:
        """Where it is handed a bias."""
        return has_score

    def refusal(self, task: Task) -> str | None:
        """What the sdpa backends refuse one and all."""
        told = am.explain(task.q, task.k, task.v, task.recipe, q_offset=task.q_offset)
        reasons = [row.reason for row in told.rows if row.backend.startswith("sdpa_")]
        return None if None in reasons else str(reasons[-1])

    def prepared(self, task: Task) -> Attend:
        """One call, its mask made beforehand."""
        keywords, empty = self._keywords(task)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = scaled_dot_product_attention(q, k, v, **keywords)
            return out if empty is None else out.masked_fill(empty, 0)

        return attend

    def kernel(self, task: Task) -> str:
        """The kernel that torch chooses."""
        keywords, _ = self._keywords(task)
        chosen = torch._fused_sdp_choice(task.q, task.k, task.v, **keywords)
        return SDPBackend(chosen).name.lower().removesuffix("_attention")

    def _keywords(self, task: Task) -> tuple[dict[str, Any], Tensor | None]:
        """The arguments besides q, k and v, and which rows see nothing."""
        call = Call(task.q, task.k, task.v, _placed(task), Needs())
        form = mask_form(call.recipe, call.shapes)
        mask, empty = matrix_of(call, self.name) if form == "dense" else (None, None)
        grouped = task.q.shape[1] != task.k.shape[1]
        keywords = {"attn_mask": mask, "is_causal": form == "causal", "scale": task.recipe.scale}
        return keywords | {"enable_gqa": grouped}, empty


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
        placed = _placed(task)
        keywords["score_mod"] = None if placed.score is None else placed.score.score_mod(PLAIN)
        grouped = task.q.shape[1] != task.k.shape[1]
        compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = compiled(q, k, v, enable_gqa=grouped, **keywords)
            return out

        return attend


class Unfused(Way):
    """softmax(q k^T + bias) v in three steps under torch.compile, with the mask as a matrix of numbers to add."""

    name = "unfused"

    def holds_matrix(self, has_score: bool) -> bool:
        """Always."""
        return True

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
        placed = _placed(task)
        device = task.q.device
        bias = torch.zeros(1, 1, q_len, kv_len, device=device)
        if placed.score is not None:
            i, j = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
            zeros = torch.zeros(1, task.q.shape[1], q_len, kv_len, dtype=torch.float64, device=device)
            bias = placed.score.dense(zeros, i, j).float()
        if placed.mask is not None:
            bias = bias.masked_fill(~placed.mask.dense(q_len, kv_len).to(device), -math.inf)
        empty = (bias == -math.inf).all(-1, keepdim=True)
        bias = bias.masked_fill(empty, 0)
        scale = 1 / math.sqrt(task.q.shape[3]) if task.recipe.scale is None else task.recipe.scale
        groups = task.q.shape[1] // task.k.shape[1]

        @torch.compile(fullgraph=True, dynamic=False)
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (k, v))
            weights = torch.softmax((q @ k.mT).float() * scale + bias, -1).to(v.dtype)
            return (weights @ v).masked_fill(empty, 0)

        return attend


class ThreeSteps(Way):
    """softmax(q k^T + mask) v as one writes it, in the dtype of the inputs: torch.compile may make one kernel of it."""

    name = "three_steps"

    def holds_matrix(self, has_score: bool) -> bool:
        """Where the compiler makes no SDPA of it, and of its mask always."""
        return True

    def __init__(self) -> None:
        self._fused_before = 0

    def mode(self, device: str) -> str | None:
        """The default mode."""
        return "default"

    def refusal(self, task: Task) -> str | None:
        """All but a mask that shows every query something."""
        if task.recipe.sink is not None or task.recipe.score is not None:
            return "it has no score and no sink"
        call = Call(task.q, task.k, task.v, _placed(task), Needs())
        mask = call.recipe.mask
        # Causal attention on equal lengths shows every row something: no matrix is made of it, which may be too large.
        if mask is None or mask_form(call.recipe, call.shapes) != "dense":
            return None
        shows_all = mask.dense(task.q.shape[2], task.k.shape[2]).any(-1).all()
        return None if shows_all else "it has no value for a row that sees nothing"

    def kernel(self, task: Task) -> str:
        """Whether the compiler recognised attention."""
        return "sdpa" if _fused() > self._fused_before else "three steps"

    def prepared(self, task: Task) -> Attend:
        """A compiled function of its own."""
        self._fused_before = _fused()
        # Divided by the root, in which form the compiler knows attention with a mask too; by a factor it does not.
        divisor = math.sqrt(task.q.shape[3]) if task.recipe.scale is None else 1 / task.recipe.scale
        groups = task.q.shape[1] // task.k.shape[1]
        call = Call(task.q, task.k, task.v, _placed(task), Needs())
        mask, bias = call.recipe.mask, None
        if mask is not None and mask_form(call.recipe, call.shapes) != "none":
            visible = mask.dense(task.q.shape[2], task.k.shape[2]).to(task.q.device)
            bias = torch.zeros(visible.shape, dtype=task.q.dtype, device=task.q.device).masked_fill(~visible, -math.inf)

        @torch.compile(fullgraph=True, dynamic=False)
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (k, v))
            scores = torch.matmul(q, k.transpose(-2, -1)) / divisor
            weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            return torch.matmul(weights, v)

        return attend


def _fused() -> int:
    """How many times the compiler has recognised attention in this process."""
    count: int = torch._dynamo.utils.counters["inductor"]["fuse_attention"]
    return count


def _placed(task: Task) -> Recipe:
    q_len, kv_len = task.q.shape[2], task.k.shape[2]
    return task.recipe.sized(task.q.shape[0], task.q.shape[1]).place(q_len, kv_len, task.q_offset)


ACTIVATED = (WithFlash4("sdpa_flash"), WithFlash4("varlen"))
"""Backends with FlashAttention-4 in the place of torch's kernel. FlashAttention-3 wants a build with a backward kernel
for that."""

TUNED = (OfBackend("flex", "_tma", USE_TMA=True), OfBackend("flex", "_prescaled", PRESCALE_QK=True))
"""Options of the flex kernel that a caller may set: measured where they are asked for by name."""

WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        *(OfBackend(each.name) for each in backends.ALL),
        *ACTIVATED,
        SdpaByDefault(),
        FlexByHand(),
        Unfused(),
        ThreeSteps(),
        *TUNED,
    )
}
DEFAULT = tuple(name for name in WAYS if WAYS[name] not in TUNED)
"""What is measured where none is asked for."""


def forget_compiled() -> None:
    """Nothing that was compiled for other lengths is left, so that sizes do not become symbols."""
    torch._dynamo.reset()
    plan._plans.clear()
    prepared_calls.forget()
