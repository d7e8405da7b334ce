"""LeftPadding: keys are tested, not queries; rows of padding are empty under a causal mask."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_c18_padding_is_tested_on_the_key() -> None:
    attention_mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    mask = masks.LeftPadding((attention_mask == 0).sum(-1)) & masks.Causal()
    assert counts(mask, 5, b=0) == [0, 0, 1, 2, 3]
    assert visible_keys(mask, 5, b=0)[4] == [2, 3, 4]
    assert counts(mask, 5, b=1) == [1, 2, 3, 4, 5]


def test_without_causal_it_hides_only_padding() -> None:
    assert visible_keys(masks.LeftPadding(1), 3) == [[1, 2]] * 3


def test_decoding_step() -> None:
    mask = masks.LeftPadding(torch.tensor([0, 3])) & masks.Causal()
    assert visible_keys(mask, 1, 5, q_offset=4, b=1) == [[3, 4]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="left_padding: start must be >= 0, got -1"):
        masks.LeftPadding(-1)
