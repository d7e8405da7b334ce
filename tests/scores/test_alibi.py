"""ALiBi: the published slopes, the three forms, precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attn_mods import masks, reference, scores
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.recipe import Recipe
from attn_mods.scores.alibi import published_slopes

PUBLISHED = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    8: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8],
    12: [
        *(2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8),
        *(2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5),
    ],
}


@pytest.mark.parametrize("num_heads", PUBLISHED)
def test_c28_published_slopes(num_heads: int) -> None:
    assert published_slopes(num_heads) == PUBLISHED[num_heads]
    zero, one = torch.tensor([0]), torch.tensor([1])
    before = torch.zeros(1, num_heads, 1, 1, dtype=torch.float64)
    rule = scores.Alibi(num_heads=num_heads).score_mod()
    slopes = -evaluate_everywhere(rule, zero, torch.arange(num_heads), one, zero, before).flatten()
    torch.testing.assert_close(slopes, torch.tensor(PUBLISHED[num_heads], dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_heads", [1, 5, 16, 20, 33, 71])
def test_slopes_of_the_rule_are_those_of_the_list(num_heads: int) -> None:
    heads, position = torch.arange(num_heads), torch.tensor([1])
    before = torch.zeros(1, num_heads, 1, 1, dtype=torch.float64)
    rule = scores.Alibi(num_heads=num_heads, form="key_only").score_mod()
    slopes = evaluate_everywhere(rule, torch.tensor([0]), heads, position, position, before).flatten()
    expected = torch.tensor(published_slopes(num_heads), dtype=torch.float64)
    torch.testing.assert_close(slopes, expected, rtol=1e-6, atol=0)


def bias(form: str, i: int, j: int) -> float:
    alibi = scores.Alibi(slopes=torch.tensor([0.5]), form=form)
    zero = torch.tensor([0])
    before = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    return evaluate_everywhere(alibi.score_mod(), zero, zero, torch.tensor([i]), torch.tensor([j]), before).item()


def test_forms_by_hand() -> None:
    assert [bias("signed", 7, 3), bias("signed", 3, 7)] == [-2.0, 2.0]
    assert [bias("absolute", 7, 3), bias("absolute", 3, 7)] == [-2.0, -2.0]
    assert [bias("key_only", 7, 3), bias("key_only", 3, 7)] == [1.5, 3.5]


def test_forms_agree_on_causal_outputs_and_key_only_moves_the_lse() -> None:
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    outs, lses = [], []
    for form in ("signed", "absolute", "key_only"):
        recipe = Recipe(mask=masks.Causal(), score=scores.Alibi(num_heads=2, form=form))
        out, lse = reference(q, k, v, recipe, return_lse=True)
        outs.append(out)
        lses.append(lse)
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(outs[2], outs[0])
    torch.testing.assert_close(lses[1], lses[0])
    slopes = torch.tensor([2**-4, 2**-8], dtype=torch.float64)
    torch.testing.assert_close(lses[2], lses[0] + slopes[:, None] * torch.arange(9))


def test_only_key_only_needs_no_query_position() -> None:
    assert scores.Alibi(num_heads=2, form="key_only").frame == "keys"
    assert scores.Alibi(num_heads=2).frame == scores.Alibi(num_heads=2, form="absolute").frame == "self"


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_c27_bfloat16_inputs_keep_float32_biases(dtype: torch.dtype) -> None:
    length = 2048
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 64, generator=generator).bfloat16() for _ in range(3))
    score = scores.Alibi(slopes=torch.tensor([0.5], dtype=dtype), form="key_only")
    torch._dynamo.reset()
    block_mask = create_block_mask(masks.Causal().mask_mod(), None, None, length, length, device="cpu")
    out = torch.compile(flex_attention, fullgraph=True)(q, k, v, score_mod=score.score_mod(), block_mask=block_mask)
    expected = reference(q, k, v, Recipe(mask=masks.Causal(), score=score))
    assert isinstance(expected, Tensor)
    assert (out.double() - expected).abs().max() <= 0.02


def test_a_number_of_no_dimension_becomes_one_element() -> None:
    alibi = scores.Alibi(slopes=torch.tensor(0.5))
    assert alibi.slopes is not None and alibi.slopes.shape == (1,)
    parameter = torch.nn.Parameter(torch.ones(2))
    assert scores.Alibi(slopes=parameter).tensors() == {"slopes": parameter}


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({}, ValueError, "one of num_heads and slopes is needed, got neither"),
        ({"num_heads": 2, "slopes": torch.ones(2)}, ValueError, "got both"),
        ({"num_heads": 0}, ValueError, "num_heads must be >= 1, got 0"),
        ({"num_heads": 2.0}, TypeError, "num_heads must be an int"),
        ({"num_heads": torch.tensor(2)}, TypeError, "num_heads must be an int"),
        ({"num_heads": 2, "form": "bottom"}, ValueError, "form must be one of the three, got 'bottom'"),
        ({"slopes": torch.ones(2, 2)}, ValueError, "slopes must have 0 or 1 dimensions"),
        ({"slopes": torch.ones(0)}, ValueError, "slopes must not be empty"),
        ({"slopes": torch.ones(2, dtype=torch.int64)}, TypeError, "slopes must be a float tensor"),
        ({"slopes": [0.5]}, TypeError, "slopes must be a float tensor"),
    ],
)
def test_errors(parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^alibi: .*{message}"):
        scores.Alibi(**parameters)  # type: ignore[arg-type]
