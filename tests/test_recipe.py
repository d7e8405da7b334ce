"""Recipe: parts, frames, documents and what plain torch is handed."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.parameters import from_structure
from tests.block_mask_equality import assert_same_block_mask

CU_SEQLENS = torch.tensor([0, 6, 6, 16])


def test_of_wraps_parts() -> None:
    mask, score = masks.Causal(), scores.Softcap(cap=2.0)
    assert Recipe.of(mask).mask is mask
    assert Recipe.of(score).score is score
    assert Recipe.of(None).mask is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": torch.ones(3, 3)}, "recipe: mask must be a Mask"),
        ({"score": 3.0}, "recipe: score must be a Score"),
        ({"sink": 3.0}, "recipe: sink must be a float tensor"),
        ({"sink": torch.zeros(2, 2)}, "recipe: sink must have 0 or 1 dimensions"),
        ({"sink": torch.tensor([0.0, math.inf])}, r"recipe: sink must be a number below infinity, got \[0.0, inf\]"),
        ({"sink": torch.tensor(math.nan)}, "recipe: sink must be a number below infinity, got nan; pass finite logits"),
        ({"scale": math.inf}, "recipe: scale must be finite"),
        ({"scale": math.nan}, "recipe: scale must be finite in float32, got nan; pass a finite number"),
        ({"sink": torch.zeros(0)}, r"recipe: sink must not be empty, got a tensor of shape \(0,\)"),
        ({"sink": torch.zeros(2).to(torch.float8_e5m2)}, "recipe: sink must be a float tensor"),
        ({"sink": [0.0, 1.0]}, r"recipe: sink must be a float tensor, got \[0\.0, 1\.0\]; pass one logit"),
        ({"scale": "1"}, "recipe: scale must be a number"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_parts(fields: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Recipe(**fields)  # type: ignore[arg-type]


def test_a_sink_of_minus_infinity_is_none() -> None:
    q, k, v = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(am.reference(q, k, v, Recipe(sink=torch.tensor(-math.inf))), am.reference(q, k, v))


def test_the_sinks_values_are_not_read_where_there_are_none() -> None:
    assert Recipe(sink=torch.zeros(2, device="meta")).sink is not None


def test_names_of_recipes() -> None:
    sink = torch.zeros(2)
    assert Recipe().name == "full"
    assert Recipe(sink=sink).name == "full and sink"
    assert Recipe(masks.Causal(), scores.Softcap(cap=2.0), sink).name == "causal with softcap and sink"


def test_place_needs_an_offset_as_masks_do() -> None:
    for part in (Recipe(masks.Causal()), masks.Causal()):
        with pytest.raises(ValueError, match=r"^causal: q_len != kv_len needs q_offset.*pass q_offset=5 if"):
            part.place(3, 8)


def test_flex_kwargs_are_what_plain_torch_takes() -> None:
    recipe = Recipe(mask=masks.SlidingWindow(5), score=scores.Softcap(cap=2.0), scale=0.5)
    keywords = recipe.flex_kwargs(40, 60, q_offset=20, block_size=16)
    assert set(keywords) == {"score_mod", "block_mask", "scale"}
    assert keywords["scale"] == 0.5
    expected = create_block_mask(keywords["block_mask"].mask_mod, 1, 1, 40, 60, "cpu", BLOCK_SIZE=16)
    expected.mask_mod = keywords["block_mask"].mask_mod
    assert_same_block_mask(keywords["block_mask"], expected)


@pytest.mark.parametrize("part", [Recipe(), scores.Softcap(cap=2.0)], ids=["recipe", "score"])
def test_python_operators_are_refused(part: Recipe | am.Score) -> None:
    with pytest.raises(TypeError, match="has no truth value"):
        part and Recipe()


def test_flex_kwargs_refuse_a_sink() -> None:
    with pytest.raises(ValueError, match=r"flex_attention has no argument for a sink.*call attn_mods\.attention"):
        Recipe(sink=torch.zeros(2)).flex_kwargs(16)


@pytest.mark.parametrize("mask", [None, masks.Causal()], ids=["no mask", "causal"])
def test_per_document_is_each_document_alone(mask: am.Mask | None) -> None:
    q, k, v = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64)
    recipe = Recipe(mask=mask, score=scores.Softcap(cap=1.0))
    packed = am.reference(q, k, v, recipe.per_document(CU_SEQLENS))
    for start, end in ((0, 6), (6, 16)):
        alone = am.reference(q[:, :, start:end], k[:, :, start:end], v[:, :, start:end], recipe)
        torch.testing.assert_close(packed[:, :, start:end], alone)


def test_a_score_per_document_hides_other_documents() -> None:
    q, k, v = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64)
    score = scores.Softcap(cap=1.0)
    by_score = am.reference(q, k, v, score.per_document(CU_SEQLENS))
    torch.testing.assert_close(by_score, am.reference(q, k, v, Recipe(score=score).per_document(CU_SEQLENS)))


def test_structure_round_trip() -> None:
    mask = (masks.SlidingWindow(torch.tensor(3)) & masks.Document(CU_SEQLENS)).shift(q=1)
    recipe = Recipe(mask=mask, score=scores.Softcap(cap=3.0) >> scores.Softcap(cap=2.0), sink=torch.zeros(2))
    again = from_structure(recipe.structure(), list(recipe.tensors().values()), recipe.integers())
    assert again.key() == recipe.key()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))], ids=["deep", "pickle"]
)
def test_c62_copies_are_equal(copied: object) -> None:
    assert callable(copied)
    recipe = Recipe(mask=masks.Document(CU_SEQLENS), score=scores.Softcap(cap=3.0).shift(q=2), sink=torch.ones(2))
    again = copied(recipe)
    assert again.structure() == recipe.structure()
    assert all(torch.equal(a, b) for a, b in zip(again.tensors().values(), recipe.tensors().values(), strict=True))


def test_with_tensors_replaces_by_name_and_checks() -> None:
    recipe = Recipe(mask=masks.SlidingWindow(torch.tensor(3)) & masks.Causal(), sink=torch.zeros(2))
    assert set(recipe.tensors()) == {"mask.left.window", "sink"}
    changed = recipe.with_tensors({"mask.left.window": torch.tensor(7)})
    assert int(changed.tensors()["mask.left.window"]) == 7
    with pytest.raises(ValueError, match="window must be >= 1"):
        recipe.with_tensors({"mask.left.window": torch.tensor(0)})
    with pytest.raises(ValueError, match="with_tensors takes the names that tensors"):
        recipe.with_tensors({"window": torch.tensor(7)})


def test_sizes_of_parts_must_agree() -> None:
    recipe = Recipe(mask=masks.SlidingWindow(torch.tensor([1, 2])), sink=torch.zeros(3))
    with pytest.raises(ValueError, match="the H of its parts must be 1 or equal, got mask 2 and sink 3"):
        recipe.batch_and_heads()
