"""Every entry through attention(): compiled flex on the CPU against float64, gradients against finite differences.

A kernel is seconds of C++ compiler. Of each entry one case is compiled whole: the first with parameters of another kind
than those of "tiny" (tensors, of a head or a sample, of another rank), "tiny" where there is none. In all other cases
torch traces the same program and computes it without generating code. With ``ATTN_MODS_COMPILE_ALL=1``, as in
``make fuzz``, all are compiled whole.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Mask, Recipe, Score, masks, scores
from attn_mods.backend_checks import Problem, check_output
from attn_mods.entry import Entry

ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in (*masks.ALL, *scores.ALL)]
LENGTHS = ((200, 200),)
SMALL = ((6, 6),)


def entry_id(entry: Entry) -> str:
    return entry.name


def as_recipe(part: Mask | Score) -> Recipe:
    """Scores are run under a causal mask, as most of them are in use."""
    return Recipe(mask=masks.Causal(), score=part) if isinstance(part, Score) else Recipe(mask=part)


def kind_of(recipe: Recipe) -> tuple[object, ...]:
    """What decides about a kernel besides the rule: the sizes read, and the kinds of the parameters."""
    part: Any = recipe.mask if recipe.score is None else recipe.score
    batch, heads = recipe.batch_and_heads()
    kinds = ((type(value), getattr(value, "ndim", None)) for value in vars(part).values())
    return (batch > 1, heads > 1, *kinds)


def recipes_of(entry: Entry) -> dict[str, tuple[Recipe, int, int]]:
    """Recipe and lengths of each case."""
    made = {}
    for name, case in entry.cases.items():
        q_len, kv_len = (case.lengths or LENGTHS)[-1]
        made[name] = as_recipe(case.make(q_len, kv_len, "cpu")), q_len, kv_len
    return made


def compiled_cases(entry: Entry) -> list[str]:
    """The cases of an entry of which a kernel is compiled."""
    if os.environ.get("ATTN_MODS_COMPILE_ALL"):
        return list(entry.cases)
    kinds = {name: kind_of(recipe) for name, (recipe, _, _) in recipes_of(entry).items()}
    return [next((name for name in kinds if kinds[name] != kinds["tiny"]), "tiny")]


def assert_flex_equals_float64(entry: Entry, names: list[str]) -> None:
    recipes = recipes_of(entry)
    for name in names:
        recipe, q_len, kv_len = recipes[name]
        row = check_output(name, "flex", Problem.of(recipe, q_len, kv_len, torch.float32))
        assert row.outcome == "ok", f"{entry.name} {name} {q_len}x{kv_len}: {row.detail}"


@pytest.mark.parametrize("entry", ENTRIES, ids=entry_id)
def test_compiled_flex_equals_the_reference(entry: Entry, record_property: Any) -> None:
    names = compiled_cases(entry)
    assert_flex_equals_float64(entry, names)
    record_property("cases of compiled flex", len(names))


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("entry", ENTRIES, ids=entry_id)
def test_traced_flex_equals_the_reference(entry: Entry, record_property: Any) -> None:
    names = [name for name in entry.cases if name not in compiled_cases(entry)]
    assert_flex_equals_float64(entry, names)
    record_property("cases of traced flex", len(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=entry_id)
def test_gradients_of_eager_against_finite_differences(entry: Entry) -> None:
    case = entry.cases["tiny"]
    q_len, kv_len = min(case.lengths or SMALL, key=lambda lengths: lengths[0] * lengths[1])
    recipe = as_recipe(case.make(q_len, kv_len, "cpu"))
    learnable = {
        name: tensor.detach().double().requires_grad_()
        for name, tensor in recipe.tensors().items()
        if tensor.dtype.is_floating_point
    }
    heads = max(2, recipe.batch_and_heads()[1])
    learnable["sink"] = torch.linspace(-1, 1, heads, dtype=torch.float64).requires_grad_()
    recipe = Recipe(recipe.mask, recipe.score, learnable["sink"])
    offset = None if q_len == kv_len or recipe.frame != "self" else 0
    generator = torch.Generator().manual_seed(0)
    batch = recipe.batch_and_heads()[0]
    q, k, v = (
        torch.randn(batch, heads, n, 2, generator=generator, dtype=torch.float64, requires_grad=True)
        for n in (q_len, kv_len, kv_len)
    )

    def run(q: Tensor, k: Tensor, v: Tensor, *values: Tensor) -> Tensor:
        changed = recipe.with_tensors(dict(zip(learnable, values, strict=True)))
        out = am.attention(q, k, v, changed, q_offset=offset, backend="eager")
        assert isinstance(out, Tensor)
        return out

    assert torch.autograd.gradcheck(run, (q, k, v, *learnable.values()), fast_mode=q_len * kv_len > 100)
