"""Every way computes the reference, or says why it does not."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch
from torch._inductor.utils import fresh_cache

import attn_mods as am
from attn_mods import Recipe, backends, masks, scores
from benchmarks.attention.ways import BASELINE, WAYS, Task

RECIPES = {
    "causal": Recipe(mask=masks.Causal()),
    "nothing to see": Recipe(mask=masks.Causal().shift(q=-3)),
    "softcap": Recipe(mask=masks.Causal(), score=scores.Softcap(5.0)),
    "alibi": Recipe(mask=masks.Causal(), score=scores.Alibi(num_heads=4)),
    "sink": Recipe(mask=masks.Causal(), sink=torch.tensor([0.0, 1.0, -1.0, 2.0])),
}


def task(name: str, training: bool = False) -> Task:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 40, 16, requires_grad=training) for heads in (4, 2, 2))
    return Task(RECIPES[name], q, k, v, None)


def test_ways_are_the_backends_and_what_is_written_by_hand() -> None:
    assert [*WAYS] == [
        *(each.name for each in backends.ALL),
        "sdpa_flash_fa4",
        "varlen_fa4",
        "sdpa_default",
        BASELINE,
        "unfused",
        "three_steps",
        "flex_tma",
        "flex_prescaled",
    ]
    assert all(name == way.name for name, way in WAYS.items())


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", WAYS)
def test_way(name: str, recipe: str) -> None:
    way, asked = WAYS[name], task(recipe)
    refused = way.refusal(asked)
    if refused is not None:
        assert refused and not refused.endswith(".")
        return
    with torch.no_grad():
        out = way.prepared(asked)(asked.q, asked.k, asked.v)
    expected = am.reference(asked.q, asked.k, asked.v, asked.recipe)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "recipe", "training", "reason"),
    [
        ("flex", "causal", True, "no gradients on a CPU"),
        (BASELINE, "causal", True, "no gradients on a CPU"),
        (BASELINE, "sink", False, "no argument for a sink"),
        ("unfused", "sink", False, "no sink"),
        ("unfused", "softcap", False, "softcap is not an added bias"),
        ("three_steps", "alibi", False, "no score"),
        ("three_steps", "sink", False, "no sink"),
        ("three_steps", "nothing to see", False, "a row that sees nothing"),
        ("sdpa_math", "softcap", False, "softcap is not an added bias"),
        ("sdpa_cudnn", "causal", False, "does not run on cpu"),
        ("sdpa_flash_fa4", "causal", False, "flash-attn-4 is not installed"),
        ("sdpa_flash_fa4", "sink", False, "has no sink"),
    ],
)
def test_reasons(name: str, recipe: str, training: bool, reason: str) -> None:
    refused = WAYS[name].refusal(task(recipe, training))
    assert refused is not None and reason in refused


@pytest.mark.parametrize("name", ["sdpa_flash_fa4", "varlen_fa4"])
def test_flash4_is_put_in_place_and_taken_out_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", done.append)
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", lambda: done.append("restored"))
    with pytest.raises(ValueError, match="of the kernel"), WAYS[name].within():
        assert done == ["benchmarks.attention.flash4_for_torch"]
        raise ValueError("of the kernel")
    assert done[1:] == ["restored"]


def test_torch_is_given_the_kernels_of_flash4_that_it_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("flash_attn.cute.interface")
    package._flash_attn_fwd = lambda q, *, causal: (q, causal, None, None, None)  # type: ignore[attr-defined]
    package._flash_attn_bwd = lambda: "gradients"  # type: ignore[attr-defined]
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", package)
    monkeypatch.delitem(sys.modules, "benchmarks.attention.flash4_for_torch", raising=False)
    kernels = importlib.import_module("benchmarks.attention.flash4_for_torch")
    assert kernels._flash_attn_fwd("out", causal="lse") == ("out", "lse")
    assert kernels._flash_attn_bwd() == "gradients"
    monkeypatch.delitem(sys.modules, "benchmarks.attention.flash4_for_torch")


def test_long_causal_attention_is_judged_without_its_matrix() -> None:
    q = torch.empty(1).expand(1, 1, 1_000_000, 16)
    assert WAYS["three_steps"].refusal(Task(Recipe(mask=masks.Causal()), q, q, q, None)) is None


def test_modes() -> None:
    assert WAYS["flex"].mode("cuda") == "max-autotune-no-cudagraphs"
    compiled = {name for name, way in WAYS.items() if way.mode("cpu")}
    assert compiled == {
        "flex",
        "flex_flash",
        "flex_tma",
        "flex_prescaled",
        BASELINE,
        "unfused",
        "three_steps",
    }


def test_what_the_compiler_made_of_three_steps_is_known() -> None:
    way, asked = WAYS["three_steps"], task("causal")
    attend = way.prepared(asked)
    assert way.kernel(asked) == "three steps"
    with fresh_cache(), torch.no_grad():
        out = attend(asked.q, asked.k, asked.v)
    assert way.kernel(asked) == "sdpa"
    torch.testing.assert_close(
        out.double(), am.reference(asked.q, asked.k, asked.v, asked.recipe), atol=1e-5, rtol=1e-5
    )
    assert WAYS["unfused"].kernel(asked) is None
    torch._dynamo.reset()
