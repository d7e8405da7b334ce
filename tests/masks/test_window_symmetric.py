"""WindowSymmetric: the radius, and how published windows convert to it."""

import pytest

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_radius_counts_one_side() -> None:
    assert visible_keys(masks.WindowSymmetric(2), 9)[4] == [2, 3, 4, 5, 6]
    assert counts(masks.WindowSymmetric(2), 9) == [3, 4, 5, 5, 5, 5, 5, 4, 3]


@pytest.mark.parametrize(
    ("radius", "keys"),
    [
        (128 // 2, 129),  # ModernBERT, local_attention=128: flash-attention's window_size=(64, 64)
        (512 // 2, 513),  # Longformer, attention_window=512: 256 on each side
        (127, 255),  # LongT5, local_radius=127
        (512 // 2, 513),  # EmbeddingGemma, sliding_window=512: |i - j| < 512 // 2 + 1
        (512 - 1, 1023),  # a rule |i - j| < 512
    ],
)
def test_published_windows(radius: int, keys: int) -> None:
    mask = masks.WindowSymmetric(radius)
    assert counts(mask, 2047)[1023] == keys
    band = mask.band()
    assert band.left + band.right + 1 == keys


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"window_symmetric: radius must be >= 0, got -1; .*one side of the query"):
        masks.WindowSymmetric(-1)
    with pytest.raises(TypeError, match=r"radius must be an int or an integer tensor, got 2\.0"):
        masks.WindowSymmetric(2.0)
