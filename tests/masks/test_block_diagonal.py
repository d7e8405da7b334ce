"""BlockDiagonal: blocks do not see each other."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def test_blocks_are_documents_of_equal_length() -> None:
    documents = masks.Document.from_lengths([4, 4, 2])
    assert torch.equal(masks.BlockDiagonal(4).dense(10, 10), documents.dense(10, 10))


def test_four_areas_are_blocks_of_a_quarter() -> None:
    assert torch.equal(masks.BlockDiagonal(64 // 4).dense(64, 64), masks.Area(tokens=64, area=4).dense(64, 64))


def test_blocks_of_one_are_the_diagonal() -> None:
    band = masks.BlockDiagonal(1).band()
    assert (band.left, band.right) == (0, 0)
    assert masks.BlockDiagonal(2).band() is None


def test_a_block_past_the_keys_sees_nothing() -> None:
    assert visible_keys(masks.BlockDiagonal(2), 4, 2, q_offset=0) == [[0, 1], [0, 1], [], []]


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"block_diagonal: block must be an int or an integer tensor, got 2\.5"):
        masks.BlockDiagonal(2.5)
