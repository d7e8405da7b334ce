"""Every score of the catalogue, on all of its cases: rule, dense form, moved positions, documents, compiled kernel."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from attn_mods import masks, reference, scores
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.parameters import from_structure
from attn_mods.recipe import Recipe
from attn_mods.score import Score

CASES = [(cls, name) for cls in scores.ALL for name in cls.entry.cases]
LEARNABLE = [
    (cls, name)
    for cls, name in CASES
    if name != "bench"
    and cls is not scores.Sandwich  # its table is no parameter
    and cls.entry.cases[name].make(4, 4, "cpu").tensors()
]
LENGTHS = ((1, 1), (5, 5), (33, 70), (1, 40), (70, 33))


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else value.entry.name


def lengths(cls: type[Score], name: str) -> tuple[tuple[int, int], ...]:
    return cls.entry.cases[name].lengths or LENGTHS


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def float_tensors(score: Score) -> dict[str, Tensor]:
    return {name: value for name, value in score.tensors().items() if value.dtype.is_floating_point}


def both(score: Score, q_len: int, kv_len: int) -> tuple[Tensor, Tensor]:
    """(by the rule, by the dense form) of the same random scores."""
    batch, heads = score.batch_and_heads()
    before = random(batch, heads, q_len, kv_len)
    axes = [torch.arange(size) for size in (batch, heads, q_len, kv_len)]
    return evaluate_everywhere(score.score_mod(), *axes, before), score.dense(before, axes[2], axes[3])


def assert_equal(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=False)


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_rule_equals_dense(cls: type[Score], name: str) -> None:
    for q_len, kv_len in lengths(cls, name):
        score = cls.entry.cases[name].make(q_len, kv_len, "cpu")
        got, expected = both(score, q_len, kv_len)
        assert_equal(got, expected)


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_shifted_rule_is_the_last_rows(cls: type[Score], name: str) -> None:
    for _, kv_len in lengths(cls, name):
        first = kv_len // 2
        score = cls.entry.cases[name].make(kv_len, kv_len, "cpu")
        whole_rule, whole_dense = both(score, kv_len, kv_len)
        for offset in (first, torch.tensor(first)):
            moved = score.shift(q=offset)
            batch, heads = moved.batch_and_heads()
            before = random(batch, heads, kv_len, kv_len)[:, :, first:]
            axes = [torch.arange(size) for size in (batch, heads, kv_len - first, kv_len)]
            assert_equal(evaluate_everywhere(moved.score_mod(), *axes, before), whole_dense[:, :, first:])
            assert_equal(moved.dense(before, axes[2], axes[3]), whole_rule[:, :, first:])


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_c19_positions_restart_in_documents(cls: type[Score], name: str) -> None:
    for size, kv_len in lengths(cls, name):
        if size != kv_len and cls.entry.cases[name].lengths is not None:
            continue
        starts = [0, kv_len // 3, kv_len // 3, kv_len]
        score = cls.entry.cases[name].make(kv_len, kv_len, "cpu")
        packed = score.per_document(torch.tensor(starts))
        got, expected = both(packed, kv_len, kv_len)
        assert_equal(got, expected)
        batch, heads = score.batch_and_heads()
        before = random(batch, heads, kv_len, kv_len)
        for start, end in itertools.pairwise(starts):
            local = torch.arange(end - start)
            alone = score.dense(before[:, :, start:end, start:end], local, local)
            assert_equal(got[:, :, start:end, start:end], alone)
        assert torch.isinf(got[:, :, kv_len // 3 :, : kv_len // 3]).all()


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_reads_stay_inside_the_tensors_at_positions_outside_of_the_sequence(cls: type[Score], name: str) -> None:
    q_len, kv_len = lengths(cls, name)[0]
    score = cls.entry.cases[name].make(q_len, kv_len, "cpu")
    batch, heads = score.batch_and_heads()
    positions = torch.tensor([-1000, -1, 0, 1, 127, 100_000])
    before = random(batch, heads, len(positions), len(positions))
    rule = score.score_mod()
    got = evaluate_everywhere(rule, torch.arange(batch), torch.arange(heads), positions, positions, before)
    assert not got.isnan().any()


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_additive_scores_add_the_same_to_any_score(cls: type[Score], name: str) -> None:
    q_len, kv_len = lengths(cls, name)[-1]
    score = cls.entry.cases[name].make(q_len, kv_len, "cpu")
    batch, heads = score.batch_and_heads()
    i, j = torch.arange(q_len), torch.arange(kv_len)
    first, second = (random(batch, heads, q_len, kv_len, seed=seed) for seed in (1, 2))
    added = [score.dense(before, i, j) - before for before in (first, second)]
    assert torch.allclose(added[0], added[1]) == score.additive


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_copies_and_structure_keep_the_values(cls: type[Score], name: str) -> None:
    q_len, kv_len = lengths(cls, name)[-1]
    score = cls.entry.cases[name].make(q_len, kv_len, "cpu")
    again = cls.entry.cases[name].make(q_len, kv_len, "cpu")
    restored = from_structure(score.structure(), list(score.tensors().values()), score.integers())
    assert isinstance(restored, Score)
    expected = both(score, q_len, kv_len)[0]
    for other in (again, restored, copy.deepcopy(score), pickle.loads(pickle.dumps(score)), score.to("cpu")):
        assert torch.equal(both(other, q_len, kv_len)[0], expected)


@pytest.mark.parametrize(("cls", "name"), CASES, ids=case_id)
def test_half_precision_parameters_are_computed_in_float32(cls: type[Score], name: str) -> None:
    q_len, kv_len = lengths(cls, name)[-1]
    score = cls.entry.cases[name].make(q_len, kv_len, "cpu")
    floats = float_tensors(score)
    if not floats:
        return
    rounded = {field: value.to(torch.bfloat16) for field, value in floats.items()}
    half = both(score.with_tensors(rounded), q_len, kv_len)[0]
    full = both(score.with_tensors({field: value.float() for field, value in rounded.items()}), q_len, kv_len)[0]
    torch.testing.assert_close(half, full, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("cls", scores.ALL, ids=case_id)
@torch.no_grad()
def test_compiled_flex_attention_equals_the_reference(cls: type[Score]) -> None:
    (length, _), *_ = cls.entry.cases["tiny"].lengths or ((160, 160),)
    score = cls.entry.cases["tiny"].make(length, length, "cpu")
    heads = score.batch_and_heads()[1]
    recipe = Recipe(mask=masks.Causal(), score=score)
    q, k, v = (random(max(1, score.batch_and_heads()[0]), heads, length, 16, seed=seed).float() for seed in (1, 2, 3))
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(flex_attention, fullgraph=True)
    block_mask = create_block_mask(masks.Causal().mask_mod(), None, None, length, length, device="cpu")
    out = compiled(q, k, v, score_mod=score.score_mod(), block_mask=block_mask)
    torch.testing.assert_close(out, reference(q, k, v, recipe).float(), rtol=0, atol=1e-5)
    floats = float_tensors(score)
    if floats:
        changed = score.with_tensors({name: value * 0.5 for name, value in floats.items()})
        other = Recipe(mask=masks.Causal(), score=changed)
        out = compiled(q, k, v, score_mod=changed.score_mod(), block_mask=block_mask)
        if cls is not scores.Sandwich:  # its table is no parameter: the reference goes by the formula
            torch.testing.assert_close(out, reference(q, k, v, other).float(), rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("cls", "name"), LEARNABLE, ids=case_id)
def test_gradients_of_the_dense_form(cls: type[Score], name: str) -> None:
    score = cls.entry.cases[name].make(5, 6, "cpu")
    fields = float_tensors(score)
    before = random(*score.batch_and_heads(), 5, 6)
    i, j = torch.arange(5), torch.arange(6)

    def dense(*values: Tensor) -> Tensor:
        return score.with_tensors(dict(zip(fields, values, strict=True))).dense(before, i, j)

    assert torch.autograd.gradcheck(dense, [value.double().requires_grad_() for value in fields.values()])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch asks
@pytest.mark.parametrize(("cls", "name"), LEARNABLE, ids=case_id)
def test_c65_gradients_of_captured_tensors(cls: type[Score], name: str) -> None:
    length = 20
    score = cls.entry.cases[name].make(length, length, "cpu")
    batch, heads = score.batch_and_heads()
    q, k, v, weights = (random(batch, heads, length, 8, seed=seed) for seed in (1, 2, 3, 4))
    block_mask = create_block_mask(masks.Causal().mask_mod(), None, None, length, length, device="cpu")
    torch._dynamo.reset()
    gradients = []
    for kernel in (True, False):
        leaves = {field: value.double().requires_grad_() for field, value in float_tensors(score).items()}
        learned = score.with_tensors(leaves)
        if kernel:
            request = AuxRequest(lse=True)
            rule = learned.score_mod()
            out, aux = flex_attention(q, k, v, score_mod=rule, block_mask=block_mask, return_aux=request)
            lse = aux.lse
        else:
            out, lse = reference(q, k, v, Recipe(mask=masks.Causal(), score=learned), return_lse=True)
        (out * weights).sum().add((lse * weights[..., 0]).sum()).backward()
        gradients.append({field: leaf.grad for field, leaf in leaves.items()})
    for field, expected in gradients[1].items():
        assert expected is not None and gradients[0][field] is not None
        torch.testing.assert_close(gradients[0][field], expected, rtol=1e-5, atol=1e-5)
