"""T5 buckets: published values, the float32 formula of the published code, scale 1, decoding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attn_mods import reference, scores
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.recipe import Recipe
from attn_mods.scores.t5_bucket import buckets_of_distances

DISTANCES = (0, 1, 7, 8, 16, 64, 127, 128, 1000)
ENCODER_BEFORE = (0, 1, 7, 8, 10, 14, 15, 15, 15)
ENCODER_AFTER = (0, 17, 23, 24, 26, 30, 31, 31, 31)
DECODER_BEFORE = (0, 1, 7, 8, 16, 26, 31, 31, 31)
DECODER_AFTER = (0,) * 9


def bucket(score: scores.T5Bucket, i: int, j: int) -> int:
    """The bucket a table that holds its own indices shows."""
    zero = torch.tensor([0])
    before = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    rule = score.score_mod()
    return int(evaluate_everywhere(rule, zero, zero, torch.tensor([i]), torch.tensor([j]), before).item())


def indices(buckets: int) -> Tensor:
    return torch.arange(buckets, dtype=torch.float32)[None]


@pytest.mark.parametrize(
    ("bidirectional", "before", "after"),
    [(True, ENCODER_BEFORE, ENCODER_AFTER), (False, DECODER_BEFORE, DECODER_AFTER)],
    ids=["encoder", "decoder"],
)
def test_c30_published_buckets(bidirectional: bool, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    score = scores.T5Bucket(indices(32), bidirectional=bidirectional)
    assert tuple(bucket(score, 2000, 2000 - distance) for distance in DISTANCES) == before
    assert tuple(bucket(score, 0, distance) for distance in DISTANCES) == after


@pytest.mark.parametrize(
    ("side", "max_distance"), [(16, 128), (32, 128), (32, 256), (16, 800), (8, 64), (5, 17), (2, 17), (64, 512)]
)
def test_buckets_equal_the_float32_formula_of_the_published_code(side: int, max_distance: int) -> None:
    distance = torch.arange(max_distance + 1)
    exact = side // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(max_distance / exact) * (side - exact)).long()
    expected = torch.where(distance < exact, distance, far.clamp(max=side - 1))
    assert buckets_of_distances(side, max_distance) == expected.tolist()


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_bucket_that_begins_at_the_farthest_distance(bidirectional: bool) -> None:
    score = scores.T5Bucket(indices(6 if bidirectional else 3), bidirectional=bidirectional, max_distance=2)
    assert [bucket(score, 9, 9 - distance) for distance in range(5)] == [0, 1, 2, 2, 2]
    after = [bucket(score, 9, 9 + distance) for distance in range(5)]
    assert after == ([0, 4, 5, 5, 5] if bidirectional else [0] * 5)


def test_c30_decoding_with_an_offset_keeps_the_bias() -> None:
    score = scores.T5Bucket(torch.randn(2, 32), bidirectional=False)
    q, k, v = (torch.randn(1, 2, 150, 8) for _ in range(3))
    whole = reference(q, k, v, score)
    last = reference(q[:, :, 149:], k, v, score, q_offset=149)
    torch.testing.assert_close(last, whole[:, :, 149:])


def test_c30_t5_attention_has_scale_one() -> None:
    table = torch.randn(2, 32, dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.float64) for _ in range(3))
    distance = torch.arange(40)[None, :] - torch.arange(40)[:, None]
    side = torch.tensor(buckets_of_distances(16, 128))[distance.abs()]
    bias = table[:, side + 16 * (distance > 0)]
    expected = torch.softmax(q @ k.mT + bias, dim=-1) @ v
    got = reference(q, k, v, Recipe(score=scores.T5Bucket(table), scale=1.0))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"table": torch.ones(2, 3)}, ValueError, "each direction needs at least 2 buckets, got 1"),
        ({"table": torch.ones(2, 1), "bidirectional": False}, ValueError, "each direction needs at least 2 buckets"),
        ({"table": torch.ones(32)}, ValueError, "table must have 2 dimensions"),
        ({"table": torch.ones(2, 32), "max_distance": 8}, ValueError, "max_distance must be >= 9, got 8"),
        ({"table": torch.ones(2, 32), "max_distance": 64.0}, TypeError, "max_distance must be an int"),
        ({"table": torch.ones(2, 32), "bidirectional": 1}, TypeError, "bidirectional must be a bool"),
    ],
)
def test_errors(parameters: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^t5_bucket: {message}"):
        scores.T5Bucket(**parameters)  # type: ignore[arg-type]
