"""A group small enough to measure in a test, and ways that go wrong."""

from __future__ import annotations

import time

import torch
from torch import Tensor

import attn_mods as am
from benchmarks.attention.cases import Group, Shape
from benchmarks.attention.ways import Attend, Task, Way

SMALL = Group("sliding_window", "bench", Shape(1, 2, 1, 64, 64, 16, "float32"))


class Changed(Way):
    """The eager backend, and something done to what it computes."""

    name = "changed"

    def refusal(self, task: Task) -> str | None:
        return None

    def prepared(self, task: Task) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.change(am.attention(q, k, v, task.recipe, q_offset=task.q_offset, backend="eager"))

        return attend

    def change(self, out: Tensor) -> Tensor:
        return out


class OffByALittle(Changed):
    def change(self, out: Tensor) -> Tensor:
        return out * 1.0001


class NotFinite(Changed):
    def change(self, out: Tensor) -> Tensor:
        return torch.where(torch.arange(out.shape[2])[:, None] == 3, out * float("nan"), out)


class _HalvesGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, out: Tensor) -> Tensor:
        return out.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / 2


class WrongGradients(Changed):
    def change(self, out: Tensor) -> Tensor:
        halved: Tensor = _HalvesGradients.apply(out)
        return halved


class Raises(Changed):
    def change(self, out: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nand more about it")


class OutOfMemory(Changed):
    def change(self, out: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has little")


class Slow(Changed):
    def change(self, out: Tensor) -> Tensor:
        time.sleep(60)
        return out
