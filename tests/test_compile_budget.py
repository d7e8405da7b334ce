"""How often flex compiles: at most twice for changing values, three times for changing lengths, and never silently not.

Most tests let torch stop after tracing (backend "eager"), which counts the same and costs no C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import attn_mods as am
from attn_mods import Recipe, masks, registry, scores
from attn_mods.backends import plan
from attn_mods.backends.block_mask_cache import of_any_length
from attn_mods.block_mask import LIST_NAMES, lists_of
from attn_mods.mask import Mask
from attn_mods.score import Score
from tests.attention_inputs import assert_matches_reference, inputs
from tests.entry_values import (
    COMPILED_IN,
    LENGTH,
    LENGTHS,
    NO_VALUES,
    NUMBERS,
    PER_SAMPLE,
    all_values,
    changing_parameters,
    constant_parameters,
    parameters,
    takes,
)

SQUARE = tuple((length, length) for length in (100, 120, 140, 258, 260, 300, 390))
RECTANGULAR = ((100, 120), (100, 130), (140, 150), (120, 300), (258, 300), (290, 300), (100, 390))
BATCHES = (2, 3, 5, 1)

ALL_VALUES = all_values()


class Compiles:
    """Graphs compiled since this was made."""

    def __init__(self) -> None:
        self.before = counters["stats"]["unique_graphs"]

    @property
    def count(self) -> int:
        return int(counters["stats"]["unique_graphs"] - self.before)


def run(
    recipe: Recipe | Mask | Score | None,
    q_len: int,
    kv_len: int,
    offset: int | Tensor | None = None,
    *,
    batch: int | None = None,
) -> None:
    own, heads = Recipe.of(recipe).batch_and_heads()
    heads = max(heads, 2)
    tensors = inputs(q_len, kv_len, batch=own if batch is None else batch, heads=heads, key_heads=heads // 2)
    assert_matches_reference(tensors, recipe, "flex", q_offset=offset)


ENTRIES = am.names(kind="mask") + am.names(kind="score")
WITHOUT_A_CANVAS = [name for name in ENTRIES if f"{name}.canvas" not in COMPILED_IN]


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", WITHOUT_A_CANVAS)
def test_c49_lengths(name: str) -> None:
    """The first lengths are constants of a kernel, those that changed are not; two sides may come to differ later.

    Neighborhood and sliding tile are left out: the shape of their canvas, and so each length, is a constant.
    """
    make = registry.info(name).cases["tiny"].make
    compiles = Compiles()
    for lengths, most in ((SQUARE, 2), (RECTANGULAR, 3)):
        for q_len, kv_len in lengths:
            run(make(q_len, kv_len, "cpu"), q_len, kv_len, None if q_len == kv_len else 0)
        assert 1 <= compiles.count <= most


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("order", ["falling", "square first", "square last"])
def test_c49_lengths_in_any_order(order: str) -> None:
    lengths = {
        "falling": RECTANGULAR[::-1],
        "square first": SQUARE[:3] + RECTANGULAR,
        "square last": RECTANGULAR + SQUARE[-3:],
    }[order]
    recipe = Recipe(masks.Causal() & masks.KeyPadding(torch.tensor([90, 300])), scores.Softcap(5.0))
    compiles = Compiles()
    for q_len, kv_len in lengths:
        run(recipe, q_len, kv_len, 0)
    assert 1 <= compiles.count <= 3


@pytest.mark.usefixtures("fresh_plans")
def test_c49_lengths_compiled() -> None:
    """Lists with room for a second block, and symbols for their sizes, are read right by a real kernel."""
    mask = masks.SlidingWindow(torch.tensor([5, 200])) & masks.KeyPadding(torch.tensor([90, 300]))
    compiles = Compiles()
    for q_len, kv_len in RECTANGULAR:
        run(mask, q_len, kv_len, 0)
    assert compiles.count <= 3


@pytest.mark.parametrize("lengths", [(100, 120), (100, 300), (300, 100), (300, 300), (1, 100), (1, 300)])
def test_c49_lists_of_any_length_list_the_same_blocks(lengths: tuple[int, int]) -> None:
    exact = masks.SlidingWindow(torch.tensor([5, 200])).block_mask(*lengths, q_offset=0)
    for_any = of_any_length(exact)
    assert of_any_length(exact) is for_any
    assert for_any.seq_lengths == exact.seq_lengths
    for name, mine, theirs in zip(LIST_NAMES, lists_of(for_any), lists_of(exact), strict=True):
        assert mine is not theirs
        room = mine.clone()
        room[tuple(slice(size) for size in theirs.shape)] -= theirs
        assert not room.any(), f"{name} has other blocks, or counts some in its room"
        counts_columns = name.endswith("q_num_blocks")
        assert list(mine.shape[2:]).count(1) == int(lengths[0] == 1 and not counts_columns)


@pytest.mark.usefixtures("traced_only")
def test_c49_plans_that_share_lists_do_not_disturb_each_other() -> None:
    """To one plan they are those of its first lengths, to the other one they are not."""
    one, other = masks.Causal(), Recipe(masks.Causal(), scores.Softcap(5.0))
    run(one, 300, 300)
    run(other, 260, 260)
    run(other, 300, 300)
    compiles = Compiles()
    run(one, 300, 300)
    assert compiles.count == 0


def test_every_parameter_has_values() -> None:
    remedy = "say in tests/entry_values.py how to make the entry with other values of"
    assert changing_parameters() == ALL_VALUES.keys() | NO_VALUES.keys(), remedy
    assert constant_parameters() == COMPILED_IN.keys(), remedy


def parameter_of(part: Mask | Score, name: str) -> object:
    """A parameter of an entry, or of one of its parts if the entry is a composition."""
    found = vars(part) | {tensor.rpartition(".")[2]: value for tensor, value in part.tensors().items()}
    value = found[name]
    return (tuple(value.shape), value.tolist()) if isinstance(value, Tensor) else value


def values_of(parameter: str) -> list[Any]:
    """Ids and functions from a number to an entry: with an int, and with a 0-d tensor where both are allowed."""
    name, _, field = parameter.partition(".")
    annotation = dict(parameters(name))[field]
    make = ALL_VALUES[parameter]
    if not (takes("int", annotation) and takes("Tensor", annotation)):
        return [pytest.param(parameter, make, id=parameter)]
    tensor = pytest.param(parameter, lambda n: make(torch.tensor(n)), id=f"{parameter}, a tensor")
    return [pytest.param(parameter, make, id=f"{parameter}, an int"), tensor]


def compiles_of_values(parameter: str, make: Callable[[Any], Any], numbers: tuple[int, ...] = NUMBERS) -> int:
    """Compiles for all numbers as a parameter."""
    compiles = Compiles()
    for number in numbers:
        run(make(number), *LENGTHS.get(parameter, lambda n: (LENGTH, LENGTH))(number))
    return compiles.count


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize(("parameter", "make"), [case for parameter in ALL_VALUES for case in values_of(parameter)])
def test_c49_values(parameter: str, make: Callable[[Any], Any]) -> None:
    field = parameter.partition(".")[2]
    assert len({repr(parameter_of(make(number), field)) for number in NUMBERS}) == len(NUMBERS) == 7
    assert 1 <= compiles_of_values(parameter, make) <= 2


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("parameter", COMPILED_IN)
def test_c49_constants_of_the_kernel_compile_anew_and_are_right(parameter: str) -> None:
    assert compiles_of_values(parameter, COMPILED_IN[parameter], NUMBERS[:3]) == 3


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize(
    "make",
    [
        lambda n: masks.SlidingWindow(torch.arange(1, 5) * n),
        lambda n: masks.Document.from_lengths([n, 100 - n]),
        lambda n: masks.Document.from_lengths([n, 100 - n]) & masks.SlidingWindow(n),
        lambda n: Recipe(masks.Causal(), sink=torch.full((4,), float(n))),
        lambda n: masks.Causal().shift(q=n),
        lambda n: masks.Causal().shift(q=torch.tensor(n)),
        lambda n: masks.Causal().per_document(torch.tensor([0, n, 100])),
    ],
    ids=["per_head", "boundaries", "composed", "sink", "shift", "shift by a tensor", "per_document"],
)
def test_c49_values_in_compositions(make: Callable[[Any], Any]) -> None:
    compiles = Compiles()
    for value in (3, 5, 8, 13, 21, 34, 55):
        assert_matches_reference(inputs(100), make(value), "flex")
    assert 1 <= compiles.count <= 2


def test_every_entry_with_parameters_of_each_sample_is_known() -> None:
    found = set()
    for name in ENTRIES:
        for case in registry.info(name).cases.values():
            part = case.make(*(case.lengths or ((LENGTH, LENGTH),))[0], "cpu")
            if Recipe.of(part).batch_and_heads()[0] > 1:
                found.add(name)
    assert found == PER_SAMPLE.keys()


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", ENTRIES)
def test_c49_batches(name: str) -> None:
    """The first batch size is a constant of a kernel, those after it are not, but for 1."""
    case = registry.info(name).cases["tiny"]
    q_len, kv_len = (case.lengths or ((LENGTH, LENGTH),))[0]
    compiles = Compiles()
    for batch in BATCHES:
        run(case.make(q_len, kv_len, "cpu"), q_len, kv_len, None if q_len == kv_len else 0, batch=batch)
    assert 1 <= compiles.count <= 3


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_c49_batches_with_parameters_of_each_sample(name: str) -> None:
    compiles = Compiles()
    for batch in BATCHES:
        part = PER_SAMPLE[name](batch)
        assert part.batch_and_heads()[0] == batch
        run(part, *LENGTHS.get(f"{name}.ancestors", lambda n: (LENGTH, LENGTH))(batch), batch=batch)
    assert 1 <= compiles.count <= 3


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
