"""What mends torch's functions: once in a process, and outside of a graph that is traced."""

from __future__ import annotations

import platform

import torch
from torch import Tensor

from attn_mods.backends.mending import once


def test_once_and_outside_of_a_traced_graph() -> None:
    calls: list[str] = []

    @once
    def mend() -> None:
        calls.append(platform.node())  # which a compiler does not trace

    def function(x: Tensor) -> Tensor:
        mend()
        return x + 1

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(())) == 1
    function(torch.zeros(()))
    assert compiled(torch.zeros(3)).sum() == 3  # traced again
    assert len(calls) == 1
