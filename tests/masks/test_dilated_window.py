"""DilatedWindow: taps, both-sided windows, the conventions of the paper and its code."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def test_causal_taps() -> None:
    rows = visible_keys(masks.DilatedWindow(window=4, dilation=3), 12)
    assert rows[11] == [2, 5, 8, 11]
    assert rows[4] == [1, 4]


def test_taps_on_both_sides() -> None:
    rows = visible_keys(masks.DilatedWindow(window=5, dilation=2, causal=False), 12)
    assert rows[6] == [2, 4, 6, 8, 10]
    assert rows[0] == [0, 2, 4]


def test_one_side_of_the_authors_code_is_half_the_window() -> None:
    # diagonaled_mm_tvm.py visits i + d * (k - w) for k = 0 ... 2 w, or only up to k = w with autoregressive=True
    w, d, i, n = 3, 4, 20, 40
    both = [i + d * (k - w) for k in range(2 * w + 1)]
    assert visible_keys(masks.DilatedWindow(2 * w + 1, d, causal=False), n)[i] == both
    assert visible_keys(masks.DilatedWindow(w + 1, d, causal=True), n)[i] == both[: w + 1]


def test_without_gaps_it_is_a_window() -> None:
    assert torch.equal(masks.DilatedWindow(4, 1).dense(20, 20), masks.SlidingWindow(4).dense(20, 20))
    assert torch.equal(masks.DilatedWindow(7, 1, causal=False).dense(20, 20), masks.WindowSymmetric(3).dense(20, 20))
    band = masks.DilatedWindow(7, 1, causal=False).band()
    assert (band.left, band.right) == (3, 3)
    assert masks.DilatedWindow(7, 2).band() is None


def test_only_some_heads_are_dilated() -> None:
    mask = masks.DilatedWindow(3, torch.tensor([1, 5], dtype=torch.int8))
    assert visible_keys(mask, 12, h=0)[11] == [9, 10, 11]
    assert visible_keys(mask, 12, h=1)[11] == [1, 6, 11]


def test_decoding_keeps_the_phase() -> None:
    assert visible_keys(masks.DilatedWindow(3, 2), 1, 10, q_offset=9) == [[5, 7, 9]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="dilated_window: window must be odd without causal, got 4"):
        masks.DilatedWindow(4, 2, causal=False)
    with pytest.raises(ValueError, match="window must be odd without causal"):
        masks.DilatedWindow(torch.tensor([3, 4]), 2, causal=False)
    with pytest.raises(ValueError, match="dilation must be >= 1, got 0"):
        masks.DilatedWindow(4, 0)
