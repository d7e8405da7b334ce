"""How often flex compiles: at most twice for changing values, three times for changing lengths, and never silently not.

Most tests let torch stop after tracing (backend "eager"), which counts the same and costs no C++ compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import attn_mods as am
from attn_mods import Recipe, masks, registry, scores
from attn_mods.backends import plan
from attn_mods.mask import Mask
from attn_mods.score import Score
from tests.attention_inputs import assert_matches_reference, inputs

LENGTHS = (100, 120, 140, 257, 260, 300, 390)


@pytest.fixture
def fresh_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plan is compiled yet."""
    monkeypatch.setattr(plan, "_plans", type(plan._plans)())
    yield


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch, fresh_plans: None) -> None:
    """Plans are traced and guarded as always, and what was traced runs without code generation."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


class Compiles:
    """Graphs compiled since this was made."""

    def __init__(self) -> None:
        self.before = counters["stats"]["unique_graphs"]

    @property
    def count(self) -> int:
        return int(counters["stats"]["unique_graphs"] - self.before)


def run(recipe: Recipe | Mask | Score | None, q_len: int, kv_len: int, offset: int | Tensor | None = None) -> None:
    batch, heads = Recipe.of(recipe).batch_and_heads()
    tensors = inputs(q_len, kv_len, batch=batch, heads=max(heads, 2), key_heads=max(heads, 2) // 2 if heads != 3 else 3)
    assert_matches_reference(tensors, recipe, "flex", q_offset=offset)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", am.names(kind="mask") + am.names(kind="score"))
def test_c49_lengths(name: str) -> None:
    case = registry.info(name).cases["tiny"]
    groups: dict[tuple[bool, bool, str], list[tuple[int, int]]] = {}
    for q_len, kv_len in case.lengths or [(length, length) for length in LENGTHS]:
        # Decoding is another kernel, an offset another rule, and the shape of a canvas a constant of the kernel.
        key = q_len == 1, q_len == kv_len, case.make(q_len, kv_len, "cpu").structure()
        groups.setdefault(key, []).append((q_len, kv_len))
    for (_, square, _), lengths in groups.items():
        compiles = Compiles()
        for q_len, kv_len in lengths:
            run(case.make(q_len, kv_len, "cpu"), q_len, kv_len, None if square else 0)
        # The first length, any length, and one more when a side first has more than one block.
        assert 1 <= compiles.count <= (3 if square else 4)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize(
    "make",
    [
        masks.SlidingWindow,
        lambda n: masks.SlidingWindow(torch.tensor(n)),
        lambda n: masks.SlidingWindow(torch.arange(1, 5) * n),
        lambda n: masks.Document.from_lengths([n, 100 - n]),
        lambda n: masks.Document.from_lengths([1] * n + [100 - n]),
        lambda n: masks.Document.from_lengths([n, 100 - n]) & masks.SlidingWindow(n),
        lambda n: masks.KeyPadding(torch.tensor([n])),
        lambda n: masks.ChunkedCausal(n),
        lambda n: scores.HeadBias(torch.full((4,), float(n))),
        lambda n: Recipe(masks.Causal(), sink=torch.full((4,), float(n))),
        lambda n: masks.Causal().shift(q=n),
    ],
    ids=["int", "0-d", "per_head", "boundaries", "documents", "composed", "padding", "chunk", "bias", "sink", "shift"],
)
def test_c49_values(make: Callable[[int], Any]) -> None:
    compiles = Compiles()
    for value in (3, 5, 8, 13, 21, 34, 55):
        assert_matches_reference(inputs(100), make(value), "flex")
    assert 1 <= compiles.count <= 2


@pytest.mark.usefixtures("traced_only")
def test_c49_batches() -> None:
    compiles = Compiles()
    for batch in (1, 2, 3, 4, 5, 6, 7):
        mask = masks.KeyPadding(torch.arange(batch) + 30) & masks.Causal()
        assert_matches_reference(inputs(100, batch=batch), mask, "flex")
    assert compiles.count <= 3


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("kind", ["int", "tensor"])
def test_c46_decode_loop(kind: str) -> None:
    compiles = Compiles()
    offset = torch.tensor(99)
    for kv_len in range(100, 107):
        position = offset if kind == "tensor" else kv_len - 1
        run(masks.SlidingWindow(40), 1, kv_len, position)
        offset.add_(1)
    assert compiles.count <= 2


@pytest.mark.usefixtures("fresh_plans")
def test_c46_decode_loop_compiled() -> None:
    compiles = Compiles()
    offset = torch.tensor(99)
    for kv_len in range(100, 107):
        run(masks.Causal(), 1, kv_len, offset)
        offset.add_(1)
    assert compiles.count <= 2


@pytest.mark.usefixtures("fresh_plans")
def test_a4_tables_whose_length_changes_compiled() -> None:
    """The sizes of captured tables are symbols in the CPU kernel, which torch 2.13 confuses with its own."""
    compiles = Compiles()
    for length in (100, 140, 150, 390):
        ids = torch.arange(2 * length).reshape(2, length) // 33
        assert_matches_reference(inputs(length), masks.Document.from_ids(ids) & masks.Causal(), "flex")
    assert compiles.count <= 3


@pytest.mark.usefixtures("traced_only")
def test_floats_compile_anew_and_are_right() -> None:
    compiles = Compiles()
    for cap in (50.0, 30.0, 20.0, 50.0):
        assert_matches_reference(inputs(20), scores.Softcap(cap), "flex")
    assert compiles.count == 3


def generated(number: int) -> Mask:
    """A rule whose text differs from all others."""
    space: dict[str, Any] = {}
    exec(f"def rule(b, h, q_idx, kv_idx): return (q_idx - kv_idx + {number}) % {number + 2} < {number + 1}", space)
    return Mask.from_mask_mod(space["rule"])


@pytest.mark.usefixtures("traced_only")
def test_c50_every_differently_written_rule_is_compiled() -> None:
    limit = torch._dynamo.config.recompile_limit
    compiles = Compiles()
    for number in range(limit + 4):
        assert_matches_reference(inputs(20), generated(number), "flex")
    assert compiles.count == limit + 4
    assert torch._dynamo.config.recompile_limit == limit


@pytest.mark.usefixtures("traced_only")
def test_c50_raises_at_the_limit() -> None:
    def terms(count: int) -> Mask:
        def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            kept = q_idx >= kv_idx
            for n in range(count):  # unrolled while tracing: every count is another graph
                kept = kept & (kv_idx != n)
            return kept

        return Mask.from_mask_mod(rule, name="unrolled")

    with torch._dynamo.config.patch(recompile_limit=2):
        for count in (1, 2):
            assert_matches_reference(inputs(20), terms(count), "flex")
        with torch.no_grad(), pytest.raises(RuntimeError, match="unrolled: flex_attention was compiled anew"):
            am.attention(*inputs(20), terms(3), backend="flex")
        with torch.no_grad(), pytest.raises(RuntimeError, match="recompile_limit"):
            am.attention(*inputs(20), terms(4))
        assert_matches_reference(inputs(20), masks.SlidingWindow(3), "flex")


@pytest.mark.usefixtures("traced_only")
def test_a4_crowded_cache_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_PLANS", 2)
    for number in (1, 2):
        assert_matches_reference(inputs(20), generated(number), "flex")
    with pytest.warns(RuntimeWarning, match="more than 2 differently compiled recipes"):
        assert_matches_reference(inputs(20), generated(3), "flex")
    assert len(plan._plans) == 2
