"""What a user's functions may not do is said in plain words, by attention, explain and reference alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Mask, Recipe, Score, preflight
from attn_mods.tiles import RuleError
from tests.attention_inputs import inputs

ARRAY, LIST = np.ones((8, 8), dtype=bool), [1.0] * 8
NUMPY = "hands an index value to NumPy; .* torch's functions for those of math and NumPy$"
PYTHON = "reads an index value in Python"
RANDOM = "must give the same at every evaluation, got one that draws random numbers; draw the numbers once, outside"
TWICE = r"must give the same at every evaluation, got .*, then .* at the same position; draw the numbers once"

MASKS: dict[str, tuple[Callable[..., Any], str]] = {
    "array": (lambda b, h, q_idx, kv_idx: ARRAY[q_idx, kv_idx], NUMPY),
    "numpy comparison": (lambda b, h, q_idx, kv_idx: np.greater_equal(q_idx, kv_idx), NUMPY),
    "numpy abs": (lambda b, h, q_idx, kv_idx: np.abs(q_idx - kv_idx) < 3, NUMPY),
    "numpy where": (lambda b, h, q_idx, kv_idx: np.where(q_idx > kv_idx, q_idx, kv_idx) > 3, NUMPY),
    "numpy()": (lambda b, h, q_idx, kv_idx: torch.from_numpy(q_idx.numpy()) > 3, NUMPY),
    "math": (lambda b, h, q_idx, kv_idx: kv_idx > math.floor(q_idx / 2), PYTHON),
    "tolist": (lambda b, h, q_idx, kv_idx: kv_idx > q_idx.tolist(), PYTHON),
    "int": (lambda b, h, q_idx, kv_idx: kv_idx > int(q_idx), PYTHON),
    "list": (lambda b, h, q_idx, kv_idx: kv_idx > LIST[q_idx], "uses an index value as a Python int"),
    "range": (lambda b, h, q_idx, kv_idx: q_idx in range(3), "uses an index value as a Python condition"),
    "rand": (lambda b, h, q_idx, kv_idx: torch.rand(()) > 0.5, RANDOM),
    "rand_like": (lambda b, h, q_idx, kv_idx: torch.rand_like(q_idx.float()) > 0.5, RANDOM),
    "bernoulli": (lambda b, h, q_idx, kv_idx: torch.bernoulli(q_idx * 0.0 + 0.5) > 0.5, RANDOM),
}
SCORES: dict[str, tuple[Callable[..., Any], str]] = {
    "array": (lambda score, b, h, q_idx, kv_idx: score + ARRAY[q_idx, kv_idx], NUMPY),
    "numpy tanh": (lambda score, b, h, q_idx, kv_idx: np.tanh(score), NUMPY),
    "math": (lambda score, b, h, q_idx, kv_idx: score + math.tanh(q_idx), PYTHON),
    "list": (lambda score, b, h, q_idx, kv_idx: score + LIST[h], "uses an index value as a Python int"),
    "rand": (lambda score, b, h, q_idx, kv_idx: score + torch.rand(()), RANDOM),
    "randn_like": (lambda score, b, h, q_idx, kv_idx: score + torch.randn_like(score), RANDOM),
    "dropout": (lambda score, b, h, q_idx, kv_idx: torch.nn.functional.dropout(score), RANDOM),
    "numpy random": (lambda score, b, h, q_idx, kv_idx: score + np.random.rand(), TWICE),
    "random": (lambda score, b, h, q_idx, kv_idx: score + random.random(), TWICE),
}
CASES = [("mask", name) for name in MASKS] + [("score", name) for name in SCORES]


def users(kind: str, name: str) -> tuple[Recipe, str]:
    """The function as a recipe, and what is said of it."""
    function, message = (MASKS if kind == "mask" else SCORES)[name]
    if kind == "mask":
        return Recipe(Mask.from_mask_mod(function, name="users")), f"^users: .*{message}"
    return Recipe(score=Score.from_score_mod(function, name="users")), f"^users: .*{message}"


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("run", [am.attention, am.explain, am.reference], ids=lambda each: each.__name__)
def test_refused(run: Callable[..., object], kind: str, name: str) -> None:
    recipe, message = users(kind, name)
    with pytest.raises(RuleError, match=message):
        run(*inputs(8), recipe)


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize(
    ("kind", "name"), [("mask", "rand"), ("mask", "numpy abs"), ("score", "list"), ("score", "rand")]
)
def test_refused_inside_a_users_compile(kind: str, name: str, fullgraph: bool) -> None:
    recipe, message = users(kind, name)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return am.attention(q, k, v, recipe, backend="eager")

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=fullgraph, backend="eager")
    said = message.removeprefix("^").removesuffix("$")
    with torch.no_grad(), pytest.raises(Exception, match=said) as caught:
        compiled(*inputs(8))
    assert fullgraph or isinstance(caught.value, RuleError)
    torch._dynamo.reset()


def test_what_a_function_reads_of_its_own_is_no_index_value() -> None:
    scale, table = torch.tensor(0.5), np.arange(4.0)

    def scaled(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * float(scale) + float(table[2]) + scale.item() * np.float64(table.sum())

    tensors = inputs(8)
    out = am.attention(*tensors, Score.from_score_mod(scaled), backend="eager")
    torch.testing.assert_close(out.double(), am.reference(*tensors, Recipe(scale=0.125)), atol=1e-5, rtol=1e-5)


def test_a_score_that_is_nan_gives_the_same_every_time() -> None:
    am.explain(*inputs(8), Score.from_score_mod(lambda score, b, h, q_idx, kv_idx: score * math.nan))


def test_an_error_of_the_functions_own_is_left_alone() -> None:
    def broken(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        raise RuntimeError("an error of mine")

    with pytest.raises(RuntimeError, match=r"^an error of mine$"):
        am.attention(*inputs(8), Mask.from_mask_mod(broken))


def test_a_function_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(preflight, "_try", lambda rule, name, takes_a_score, device: tried.append(name))
    tensors = inputs(8)
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, name="users")
    for recipe in (mask, mask & mask, mask):
        am.explain(*tensors, recipe)
    assert tried == ["users"]
