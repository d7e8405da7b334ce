"""SinkPlusWindow: the published pattern and its traps."""

import pytest

from attn_mods import masks
from tests.masks.visible_keys import counts, visible_keys


def test_c23_sinks_never_precede_causality() -> None:
    rows = visible_keys(masks.SinkPlusWindow(sink_tokens=2, window=3), 16)
    assert rows[10] == [0, 1, 8, 9, 10]
    assert rows[1] == [0, 1]
    assert rows[0] == [0]


def test_keys_seen_are_at_most_the_cache() -> None:
    # StartRecentKVCache(start_size=4, recent_size=8) keeps 12 keys, the query's own among them
    assert counts(masks.SinkPlusWindow(sink_tokens=4, window=8), 20) == [*range(1, 13), *[12] * 8]


def test_decoding_still_sees_the_sinks() -> None:
    assert visible_keys(masks.SinkPlusWindow(2, 3), 2, 100, q_offset=98) == [[0, 1, 96, 97, 98], [0, 1, 97, 98, 99]]


def test_band_only_without_sinks() -> None:
    band = masks.SinkPlusWindow(0, 3).band()
    assert (band.left, band.right) == (2, 0)
    assert masks.SinkPlusWindow(1, 3).band() is None


def test_errors() -> None:
    with pytest.raises(ValueError, match="sink_plus_window: sink_tokens must be >= 0, got -1"):
        masks.SinkPlusWindow(-1, 4)
    with pytest.raises(ValueError, match=r"window must be >= 1, got 0; .*Causal\(\)"):
        masks.SinkPlusWindow(4, 0)
