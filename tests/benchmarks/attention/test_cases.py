"""Suites have every entry, on shapes its parameters fit, and pairs are counted exactly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

import attn_mods as am
from attn_mods import Recipe, masks, scores
from benchmarks.attention.cases import SUITES, Group, Shape, Suite, groups

NAMES = am.names(kind="mask") + am.names(kind="score")
SMALL = Suite((48, 96), None, 4, (16,), ("float32",))


@pytest.mark.parametrize("device", SUITES)
def test_suites_of_a_device(device: str) -> None:
    assert list(SUITES[device])[:3] == ["quick", "standard", "full"]


def test_shapes_that_are_given_are_measured_as_they_are() -> None:
    suite = SUITES["cuda"]["compared"]
    found = groups(["full", "causal"], suite)
    assert len(found) == 2 * len(set(suite.shapes)) == 2 * len(suite.shapes)
    assert {group.shape for group in found} == set(suite.shapes)
    decoding = next(group for group in found if group.entry == "causal" and group.shape.q_len == 1)
    assert decoding.q_offset(decoding.recipe("cpu")) == 4095
    assert decoding.pairs_kept() == 32 * 32 * 4096


def test_every_case_of_every_entry_on_every_length() -> None:
    found = groups(NAMES, SMALL)
    for name in NAMES:
        for case, made in am.info(name).cases.items():
            lengths = [(g.shape.q_len, g.shape.kv_len) for g in found if (g.entry, g.case) == (name, case)]
            assert lengths == ([(48, 48), (96, 96)] if made.lengths is None else [max(made.lengths)])
    products = [group.shape.q_len * group.shape.kv_len for group in found]
    assert products == sorted(products)


def test_quick_has_one_case_an_entry() -> None:
    found = groups(["causal", "alibi"], SUITES["cpu"]["quick"])
    assert [(group.entry, group.case) for group in found] == [("causal", "bench"), ("alibi", "bench")]


@pytest.mark.parametrize("group", groups(NAMES, Suite((40,), None, 2, (8,), ("float32",))), ids=lambda g: g.name)
def test_inputs_fit_and_pairs_are_those_of_the_dense_mask(group: Group) -> None:
    recipe = group.recipe("cpu")
    q, k, v, gradient = group.inputs("cpu")
    out = am.reference(q, k, v, recipe, q_offset=group.q_offset(recipe))
    assert out.shape == gradient.shape
    mask = Recipe.of(recipe).mask
    assert mask is not None
    placed = mask.place(group.shape.q_len, group.shape.kv_len, group.q_offset(recipe))
    dense = placed.dense(group.shape.q_len, group.shape.kv_len)
    assert group.pairs_kept() == int(dense.expand(group.shape.B, group.shape.Hq, -1, -1).sum())


@pytest.mark.parametrize("name", NAMES)
def test_digest_is_that_of_the_file(name: str) -> None:
    (digest,) = {group.described()["recipe_digest"] for group in groups([name], SUITES["cpu"]["quick"])}
    folder = masks if am.info(name).kind == "mask" else scores
    text = Path(str(folder.__file__)).with_name(f"{name}.py").read_bytes()
    assert digest == hashlib.sha256(text).hexdigest()[:16]


def test_memory_that_a_group_needs() -> None:
    shape = Shape(2, 4, 2, 100, 300, 8, "bfloat16")
    inputs = 2 * (4 * 100 * 2 + 2 * 300 * 2) * 8 * 2
    assert Group("full", "bench", shape).bytes_needed(holds_matrix=False) == 2**32 + 16 * inputs
    assert Group("full", "bench", shape).bytes_needed(holds_matrix=True) == 2**32 + 16 * (inputs + 2 * 4 * 100 * 300)


def test_inputs_differ_by_seed_only() -> None:
    group = Group("causal", "bench", Shape(1, 2, 2, 8, 8, 4, "bfloat16"))
    first, again, other = (group.inputs("cpu", seed=seed) for seed in (0, 0, 1))
    assert all(tensor.dtype == torch.bfloat16 for tensor in first)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_shortened() -> None:
    group = Group("causal", "bench", Shape(1, 2, 2, 300, 300, 4, "float32"))
    assert group.shortened(300) is group
    assert group.shortened(100).shape == Shape(1, 2, 2, 100, 100, 4, "float32")
    (fixed,) = groups(["tree_verification"], Suite((9,), ("bench",), 2, (8,), ("float32",)))
    assert fixed.shortened(1) is fixed


def test_name_says_both_lengths_where_they_differ() -> None:
    assert Group("full", "bench", Shape(1, 2, 2, 1, 3000, 4, "float32")).name == "full bench 1 x 3,000 float32"
