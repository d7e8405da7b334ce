"""Numbers that changed between calls, in what a compiler traces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from attn_mods.symbols import fixed


@pytest.mark.parametrize("number", [-3, 0, 1, 2**40])
def test_a_number_is_itself(number: int) -> None:
    assert fixed(number) == number


def test_a_symbol_becomes_a_plain_int() -> None:
    def power(x: Tensor, number: int) -> Tensor:
        return x + (fixed(number) ** 20 // 10**30)

    torch._dynamo.reset()
    compiled = torch.compile(power, fullgraph=True, backend="eager", dynamic=True)
    before = counters["stats"]["unique_graphs"]
    for number in (64, 128, 64):
        assert compiled(torch.zeros((), dtype=torch.int64), number) == number**20 // 10**30
    assert counters["stats"]["unique_graphs"] - before == 2
