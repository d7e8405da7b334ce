"""WindowAsymmetric: inclusive bounds, unbounded sides, errors."""

from typing import Any

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_bounds_are_extra_keys_and_inclusive() -> None:
    assert visible_keys(masks.WindowAsymmetric(left=3, right=2), 10)[5] == [2, 3, 4, 5, 6, 7]


def test_equals_the_windows_it_generalises() -> None:
    assert torch.equal(masks.WindowAsymmetric(left=3, right=0).dense(20, 20), masks.SlidingWindow(4).dense(20, 20))
    assert torch.equal(masks.WindowAsymmetric(left=3, right=3).dense(20, 20), masks.WindowSymmetric(3).dense(20, 20))
    assert torch.equal(masks.WindowAsymmetric(left=None, right=0).dense(20, 20), masks.Causal().dense(20, 20))
    assert torch.equal(masks.WindowAsymmetric(left=0, right=None).dense(20, 20), masks.AntiCausal().dense(20, 20))
    assert masks.WindowAsymmetric(left=None, right=None).dense(4, 4).all()


def test_c22_decoding_two_queries_at_the_end_of_ten_keys() -> None:
    assert visible_keys(masks.WindowAsymmetric(3, 0), 2, 10, q_offset=8) == [[5, 6, 7, 8], [6, 7, 8, 9]]


def test_each_head_has_its_bounds() -> None:
    mask = masks.WindowAsymmetric(left=torch.tensor([0, 2]), right=torch.tensor([1, 0]))
    assert counts(mask, 5, h=0) == [2, 2, 2, 2, 1]
    assert counts(mask, 5, h=1) == [1, 2, 3, 3, 3]


def test_one_bound_in_a_vector_serves_every_head() -> None:
    mask = masks.WindowAsymmetric(left=torch.tensor([1]), right=torch.tensor([0, 0, 2]))
    assert mask.batch_and_heads() == (1, 3)
    assert counts(mask, 4, h=2) == [3, 4, 3, 2]


@pytest.mark.parametrize(
    ("left", "right", "error", "message"),
    [
        (-1, 0, ValueError, "window_asymmetric: left must be >= 0, got -1; .*None for unbounded"),
        (0, torch.tensor(-1), ValueError, "right must be >= 0"),
        (1.5, 0, TypeError, "left must be an int or an integer tensor"),
        (torch.ones(2, 2, dtype=torch.int64), 0, ValueError, "0 or 1 dimensions"),
        (torch.tensor([1, 2]), torch.tensor([1, 2, 3]), ValueError, "the H of its parts must be 1 or equal"),
        (torch.tensor([], dtype=torch.int64), 0, ValueError, "must hold at least one number"),
    ],
)
def test_errors(left: Any, right: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        masks.WindowAsymmetric(left, right)
