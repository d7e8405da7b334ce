"""PrefixLm: the prefix, samples of their own, composition with padding and packing."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def test_prefix_is_seen_whole_and_the_rest_is_causal() -> None:
    assert visible_keys(masks.PrefixLm(3), 5) == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_prefix_of_one_token_is_causal(prefix: int) -> None:
    assert torch.equal(masks.PrefixLm(prefix).dense(9, 9), masks.Causal().dense(9, 9))
    band = masks.PrefixLm(prefix).band()
    assert (band.left, band.right) == (None, 0)


def test_longer_prefixes_have_no_band() -> None:
    assert masks.PrefixLm(2).band() is None
    assert masks.PrefixLm(torch.tensor(0)).band() is None


def test_each_sample_has_its_prefix() -> None:
    mask = masks.PrefixLm(torch.tensor([2, 0]))
    assert visible_keys(mask, 3, b=0) == [[0, 1], [0, 1], [0, 1, 2]]
    assert visible_keys(mask, 3, b=1) == [[0], [0, 1], [0, 1, 2]]


def test_the_prefix_does_not_unmask_padding() -> None:
    assert visible_keys(masks.PrefixLm(4) & masks.KeyPadding(3), 4) == [[0, 1, 2]] * 4


def test_a_prefix_in_each_document() -> None:
    mask = masks.PrefixLm(2).per_document(torch.tensor([0, 3, 6]))
    assert visible_keys(mask, 6) == [[0, 1], [0, 1], [0, 1, 2], [3, 4], [3, 4], [3, 4, 5]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="prefix_lm: prefix must be >= 0, got -1"):
        masks.PrefixLm(-1)
    with pytest.raises(TypeError, match="prefix must be an int or an integer tensor, got True"):
        masks.PrefixLm(True)
