"""GlobalPlusWindow: global rows and columns, per sample, decoders, errors."""

import pytest
import torch

from attn_mods import masks
from tests.masks.visible_keys import visible_keys


def first(tokens: int, length: int) -> torch.Tensor:
    return torch.arange(length) < tokens


def test_a_global_token_sees_all_and_is_seen_by_all() -> None:
    rows = visible_keys(masks.GlobalPlusWindow(1, torch.tensor([False] * 4 + [True] + [False] * 5)), 10)
    assert rows[4] == list(range(10))
    assert rows[0] == [0, 1, 4]
    assert rows[8] == [4, 7, 8, 9]


def test_each_sample_has_its_globals() -> None:
    mask = masks.GlobalPlusWindow(0, torch.stack([first(1, 4), first(0, 4)]))
    assert visible_keys(mask, 4, b=0) == [[0, 1, 2, 3], [0, 1], [0, 2], [0, 3]]
    assert visible_keys(mask, 4, b=1) == [[0], [1], [2], [3]]


def test_one_row_of_flags_serves_every_sample() -> None:
    mask = masks.GlobalPlusWindow(0, first(1, 4)[None])
    assert mask.batch_and_heads() == (1, 1)
    assert visible_keys(mask, 4) == [[0, 1, 2, 3], [0, 1], [0, 2], [0, 3]]
    third_sample = torch.tensor(2)
    assert bool(mask.mask_mod()(third_sample, torch.tensor(0), torch.tensor(3), torch.tensor(0)))


def test_other_windows_and_decoders_compose() -> None:
    mask = (masks.WindowAsymmetric(2, 0) | masks.GlobalPlusWindow(0, first(1, 8))) & masks.Causal()
    assert visible_keys(mask, 8)[6] == [0, 4, 5, 6]
    assert visible_keys(mask, 8)[0] == [0]


def test_errors() -> None:
    with pytest.raises(TypeError, match="global_plus_window: is_global must be a boolean tensor"):
        masks.GlobalPlusWindow(1, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="is_global must have 1 or 2 dimensions"):
        masks.GlobalPlusWindow(1, torch.zeros(1, 1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="radius must be >= 0, got -1"):
        masks.GlobalPlusWindow(-1, first(1, 4))
    with pytest.raises(ValueError, match="the keys must end within the 4 flags of is_global, got 5"):
        masks.GlobalPlusWindow(1, first(1, 4)).place(4, 5, 0)
    with pytest.raises(ValueError, match="the queries must end within the 4 flags of is_global, got 6"):
        masks.GlobalPlusWindow(1, first(1, 4)).place(2, 4, 4)
