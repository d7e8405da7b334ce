"""ChunkedCausal: Llama 4's chunks, their origin, padding before it."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_c24_chunks_of_four() -> None:
    rows = visible_keys(masks.ChunkedCausal(4), 10)
    assert rows[5] == [4, 5]
    assert counts(masks.ChunkedCausal(4), 10) == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_c24_left_padding_moves_the_origin_and_pads_are_a_chunk_of_their_own() -> None:
    rows = visible_keys(masks.ChunkedCausal(4, origin=torch.tensor([0, 2])), 10, b=1)
    assert rows[1] == [0, 1]
    assert rows[2] == [2]
    assert rows[5] == [2, 3, 4, 5]
    assert rows[6] == [6]


def test_published_picture_of_chunk_three() -> None:
    # llama-models and Hugging Face draw a chunk of 3 over six tokens
    assert visible_keys(masks.ChunkedCausal(3), 6) == [[0], [0, 1], [0, 1, 2], [3], [3, 4], [3, 4, 5]]


def test_a_padded_sample_sees_what_it_sees_alone() -> None:
    start = torch.tensor([3])
    padded = masks.ChunkedCausal(4, origin=start) & masks.LeftPadding(start) & masks.Causal()
    alone = visible_keys(masks.ChunkedCausal(4), 9)
    assert visible_keys(padded, 12)[3:] == [[key + 3 for key in keys] for keys in alone]


def test_decoding_step() -> None:
    assert visible_keys(masks.ChunkedCausal(4), 1, 11, q_offset=10) == [[8, 9, 10]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="chunked_causal: chunk must be >= 1, got 0"):
        masks.ChunkedCausal(0)
    with pytest.raises(ValueError, match="a tensor chunk must have 0 dimensions"):
        masks.ChunkedCausal(torch.tensor([4, 8]))
    with pytest.raises(ValueError, match="origin must be >= 0, got -1"):
        masks.ChunkedCausal(4, origin=-1)
