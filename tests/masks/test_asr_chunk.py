"""AsrChunk: WeNet's chunks, NeMo's three styles."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def test_published_picture_of_wenet() -> None:
    # subsequent_chunk_mask(4, 2): chunks of two, all left chunks
    assert visible_keys(masks.AsrChunk(2), 4) == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_left_chunks() -> None:
    rows = visible_keys(masks.AsrChunk(3, left_chunks=1), 9)
    assert rows[2] == [0, 1, 2]
    assert rows[4] == [0, 1, 2, 3, 4, 5]
    assert rows[6] == rows[8] == [3, 4, 5, 6, 7, 8]


def test_nemo_chunked_limited() -> None:
    # att_context_size=[70, 13]: chunks of 13 + 1 frames, 70 / 14 = 5 of them to the left
    rows = visible_keys(masks.AsrChunk(13 + 1, left_chunks=70 // 14), 200)
    assert (rows[100][0], rows[100][-1]) == (98 - 70, 98 + 13)
    assert torch.equal(
        masks.AsrChunk(14, left_chunks=5).dense(200, 200), masks.AsrChunk(14, left_frames=70).dense(200, 200)
    )


def test_nemo_chunked_limited_with_right_context() -> None:
    # att_context_size=[10, 4, 3] in frames: chunk 5 is 20 ... 23, so 10 ... 26 are seen
    rows = visible_keys(masks.AsrChunk(4, left_frames=10, right_frames=3), 40)
    assert rows[20] == rows[23] == list(range(10, 27))
    assert rows[0] == list(range(7))


def test_chunks_of_one_frame_are_a_window() -> None:
    assert torch.equal(masks.AsrChunk(1, 3, right_frames=2).dense(9, 9), masks.WindowAsymmetric(3, 2).dense(9, 9))
    band = masks.AsrChunk(1, 3, right_frames=2).band()
    assert (band.left, band.right) == (3, 2)
    assert masks.AsrChunk(1).band().left is None
    assert masks.AsrChunk(2, 3).band() is None


def test_dynamic_chunks_change_without_a_new_mask() -> None:
    chunk = torch.tensor(2)
    mask = masks.AsrChunk(chunk, left_chunks=1)
    assert visible_keys(mask, 6)[4] == [2, 3, 4, 5]
    chunk.fill_(3)
    assert visible_keys(mask, 6)[4] == [0, 1, 2, 3, 4, 5]


def test_errors() -> None:
    with pytest.raises(ValueError, match="asr_chunk: left context is in chunks or in frames, got both; drop"):
        masks.AsrChunk(4, left_chunks=1, left_frames=8)
    with pytest.raises(ValueError, match="left_chunks must be >= 0, got -1; pass 0 for none, None for all"):
        masks.AsrChunk(4, left_chunks=-1)
    with pytest.raises(ValueError, match="right_frames must be >= 0, got -1"):
        masks.AsrChunk(4, right_frames=-1)
