"""Every score of the catalogue, on all of its cases: rule, dense form, moved positions, documents, compiled kernel."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from attn_mods import attention, checks, masks, reference, scores
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.parameters import from_structure
from attn_mods.recipe import Recipe
from attn_mods.score import Score
from tests.refusals import assert_refused

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
def test_traced_flex_attention_equals_the_reference(cls: type[Score]) -> None:
    """As torch's compiler sees it; what it makes of it in C++ is a matter of tests/test_every_entry.py."""
    (length, _), *_ = cls.entry.cases["tiny"].lengths or ((160, 160),)
    score = cls.entry.cases["tiny"].make(length, length, "cpu")
    heads = score.batch_and_heads()[1]
    recipe = Recipe(mask=masks.Causal(), score=score)
    q, k, v = (random(max(1, score.batch_and_heads()[0]), heads, length, 16, seed=seed).float() for seed in (1, 2, 3))
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(flex_attention, fullgraph=True, backend="eager")
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


FINITE: dict[str, Callable[[Tensor], Score]] = {
    "alibi: slopes": lambda value: scores.Alibi(slopes=value),
    "kerple: r1": lambda value: scores.Kerple(value, torch.ones(4)),
    "kerple: r2": lambda value: scores.Kerple(torch.ones(4), value),
    "log_n_scale: scaling": scores.LogNScale,
    "log_n_scale: bias": lambda value: scores.LogNScale(1.0, value),
    "forgetting: log_gates": lambda value: scores.Forgetting(value.expand(1, 1, 4)),
    "sandwich: table": lambda value: scores.Sandwich(4, 4, 128, value),
}
HIDING: dict[str, Callable[[Tensor], Score]] = {
    "head_bias: bias": scores.HeadBias,
    "pair_bias: bias": lambda value: scores.PairBias(value.expand(1, 1, 4, 4)),
    "relative_bias_table: table": lambda value: scores.RelativeBiasTable(value[:3].expand(4, 3)),
    "t5_bucket: table": lambda value: scores.T5Bucket(value.expand(2, 4), max_distance=9),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("field", FINITE)
def test_parameters_must_be_finite(field: str, value: float) -> None:
    wrong = torch.tensor([-1.0, value, -0.5, -2.0], requires_grad=True)
    assert_refused(lambda: FINITE[field](wrong), ValueError, f"^{field} must be finite, got a value of {value};")


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("field", HIDING)
def test_biases_are_finite_or_hide(field: str, value: float) -> None:
    wrong = torch.tensor([0.0, value, 1.0, -math.inf])
    message = f"^{field} must be finite, or -inf where it hides a key, got a value of {value};"
    assert_refused(lambda: HIDING[field](wrong), ValueError, message)


def test_a_bias_of_minus_infinity_hides_keys_from_a_kernel() -> None:
    assert_minus_infinity_hides_keys("head_bias: bias", "flex")


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("backend", ["eager", "flex"])
@pytest.mark.parametrize("field", HIDING)
def test_a_bias_of_minus_infinity_hides_keys(field: str, backend: str) -> None:
    assert_minus_infinity_hides_keys(field, backend)


def assert_minus_infinity_hides_keys(field: str, backend: str) -> None:
    score = HIDING[field](torch.tensor([0.5, -math.inf, 1.0, 0.0]))
    q, k, v = torch.randn(3, 1, 4 if score.batch_and_heads()[1] != 2 else 2, 4, 8)
    positions = torch.arange(4)
    bias = score.dense(torch.zeros(1, q.shape[1], 4, 4, dtype=torch.float64), positions, positions)
    assert bool(bias.isneginf().any())
    weights = torch.softmax(q.double() @ k.double().mT / math.sqrt(8) + bias, -1).nan_to_num(0)
    for recipe in (Recipe(score=score), Recipe(masks.Full(), score)):
        with torch.no_grad():
            out = attention(q, k, v, recipe, backend=backend)
        torch.testing.assert_close(out.double(), weights @ v.double(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(reference(q, k, v, recipe), weights @ v.double())


def test_no_gradient_is_nan_where_a_bias_hides_keys() -> None:
    bias = torch.randn(1, 2, 5, 5)
    bias[:, :, :, 2], bias[:, :, 3] = -math.inf, -math.inf
    leaves = [*torch.randn(3, 1, 2, 5, 8).unbind(), bias]
    for leaf in leaves:
        leaf.requires_grad_()
    attention(*leaves[:3], scores.PairBias(bias), backend="eager").square().sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
    assert leaves[2].grad is not None
    assert not leaves[2].grad[:, :, 2].any()


@pytest.mark.parametrize("field", [*FINITE, *HIDING])
def test_parameters_are_float_tensors_of_16_bits_or_more(field: str) -> None:
    make = (FINITE | HIDING)[field]
    for dtype in (torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool):
        wrong = torch.ones(4).to(dtype)
        name, what = field.split(": ")
        assert_refused(lambda value=wrong: make(value), TypeError, f"^{name}: {what} must be a float tensor, got")


@pytest.mark.parametrize("field", [*FINITE, *HIDING])
def test_scores_may_be_made_before_their_values_are(field: str) -> None:
    score = (FINITE | HIDING)[field](torch.zeros(4, device="meta"))
    assert torch.device("meta") in score.devices()
    q = torch.randn(1, score.batch_and_heads()[1], 4, 8)
    with pytest.raises(ValueError, match=r"its tensors must be on cpu as q is, got meta|must be on one device"):
        attention(q, q, q, score)


def test_values_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(checks, "extremes", lambda value: read.append(value))
    score = scores.HeadBias(torch.zeros(2))
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    for _ in range(2):
        attention(q, k, v, score, backend="eager")
    assert len(read) == 1
