"""Every entry through attention(): compiled flex on the CPU against float64, gradients against finite differences."""

from __future__ import annotations

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


@pytest.mark.parametrize("entry", ENTRIES, ids=entry_id)
def test_compiled_flex_equals_the_reference(entry: Entry, record_property: Any) -> None:
    executed = 0
    for name, case in entry.cases.items():
        for q_len, kv_len in (case.lengths or LENGTHS)[-1:]:
            recipe = as_recipe(case.make(q_len, kv_len, "cpu"))
            row = check_output(name, "flex", Problem.of(recipe, q_len, kv_len, torch.float32))
            assert row.outcome == "ok", f"{entry.name} {name} {q_len}x{kv_len}: {row.detail}"
            executed += 1
    assert executed == len(entry.cases)
    record_property("compiled cases", executed)


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
