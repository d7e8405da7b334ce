"""KeyPadding: keys are tested, not queries; samples of their own."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def test_padded_queries_still_see_the_real_keys() -> None:
    assert visible_keys(masks.KeyPadding(2), 4) == [[0, 1]] * 4


def test_each_sample_has_its_length() -> None:
    mask = masks.KeyPadding(torch.tensor([3, 0, 9])) & masks.Causal()
    assert visible_keys(mask, 4, b=0) == [[0], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert visible_keys(mask, 4, b=1) == [[], [], [], []]
    assert visible_keys(mask, 4, b=2) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_cross_attention_needs_no_offset() -> None:
    assert visible_keys(masks.KeyPadding(2), 1, 4) == [[0, 1]]


def test_filled_part_of_a_static_cache() -> None:
    filled = torch.tensor(6)
    assert visible_keys(masks.KeyPadding(filled) & masks.Causal(), 1, 16, q_offset=filled - 1) == [[0, 1, 2, 3, 4, 5]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="key_padding: lengths must be >= 0, got a smallest value of -2"):
        masks.KeyPadding(torch.tensor([3, -2]))
    with pytest.raises(TypeError, match="lengths must be an int or an integer tensor"):
        masks.KeyPadding(torch.tensor([True, False]))
