"""Rules that draw random numbers are refused, and nothing else is: neither other threads nor their generator notice."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods.tiles import Grid, RuleError
from attn_mods.tiles.trace import trace

GRID = Grid(64, 64, (16, 16))
TABLE = torch.linspace(0, 1, 64)
OWN_GENERATOR = torch.Generator().manual_seed(7)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: torch.rand(()) < 0.5,
        lambda b, h, q, k: torch.rand((), generator=OWN_GENERATOR) < 0.5,
        lambda b, h, q, k: torch.randint(0, 2, ()) == q % 2,
        lambda b, h, q, k: torch.randperm(64)[q] >= k,
        lambda b, h, q, k: torch.rand_like(q, dtype=torch.float32) < 0.5,
        lambda b, h, q, k: torch.empty(()).uniform_() < 0.5,
        lambda b, h, q, k: torch.empty((), dtype=torch.int64).random_(2) == q % 2,
        lambda b, h, q, k: torch.bernoulli(TABLE)[q] > 0,
        lambda b, h, q, k: TABLE.bernoulli()[q] > 0,
        lambda b, h, q, k: torch.normal(TABLE, 1.0)[q] > 0,
        lambda b, h, q, k: torch.nn.functional.dropout(TABLE)[q] > 0,
        lambda b, h, q, k: torch.distributions.Normal(0.0, 1.0).sample() < 0.5,
        lambda b, h, q, k: torch.ops.aten.rand.default([]) < 0.5,
        lambda b, h, q, k: torch.ops.aten.rand([]) < 0.5,
    ],
    ids=[
        "rand",
        "own generator",
        "randint",
        "randperm",
        "rand_like",
        "uniform_",
        "random_",
        "bernoulli",
        "method",
        "normal",
        "dropout",
        "distribution",
        "operator",
        "operator packet",
    ],
)
def test_drawing_is_refused_and_draws_nothing(rule: Any) -> None:
    before, own_before = torch.get_rng_state(), OWN_GENERATOR.get_state()
    with pytest.raises(RuleError, match="draws random numbers"):
        trace(rule, GRID)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(OWN_GENERATOR.get_state(), own_before)


def test_an_error_of_the_rule_leaves_nothing_behind() -> None:
    def broken(b: Any, h: Any, q: Any, k: Any) -> Any:
        raise ZeroDivisionError("the rule's own")

    with pytest.raises(ZeroDivisionError):
        trace(broken, GRID)
    torch.rand(())


def test_another_thread_draws_while_a_rule_is_recorded() -> None:
    """The rule waits in its middle until the other thread has drawn."""
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    started, drawn = threading.Event(), threading.Event()
    got: list[float] = []

    def draw() -> None:
        assert started.wait(30)
        got.extend(torch.rand(2).tolist())
        drawn.set()

    def rule(b: Any, h: Any, q: Any, k: Any) -> Any:
        started.set()
        assert drawn.wait(30)
        return q >= k

    thread = threading.Thread(target=draw)
    thread.start()
    trace(rule, GRID)
    thread.join()
    assert got + torch.rand(2).tolist() == expected


@pytest.mark.parametrize("draw", [torch.bernoulli, torch.rand_like, torch.nn.functional.dropout, torch.randint_like])
def test_draws_shaped_by_an_index(draw: Any) -> None:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        arguments = (5,) if draw is torch.randint_like else ()
        return draw(q_idx.float() / 100, *arguments) > 0

    with pytest.raises(RuleError, match=r"rule: the rule draws random numbers, so it would keep other positions"):
        am.create_block_mask(rule, None, None, 32, 32, device="cpu")
