"""Relative bias table: key minus query, and both ends."""

from __future__ import annotations

import pytest
import torch

from attn_mods import scores


def test_index_is_key_minus_query_and_the_ends_are_shared() -> None:
    table = torch.tensor([[10.0, 11.0, 12.0, 13.0, 14.0]])
    before = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    positions = torch.arange(5)
    added = scores.RelativeBiasTable(table).dense(before, positions, positions)[0, 0]
    assert added.tolist() == [
        [12, 13, 14, 14, 14],
        [11, 12, 13, 14, 14],
        [10, 11, 12, 13, 14],
        [10, 10, 11, 12, 13],
        [10, 10, 10, 11, 12],
    ]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (torch.ones(2, 4), ValueError, "table must have an odd number of columns, got 4"),
        (torch.ones(5), ValueError, "table must have 2 dimensions"),
        (torch.ones(2, 0), ValueError, "table must not be empty"),
        (torch.ones(2, 5, dtype=torch.int64), TypeError, "table must be a float tensor"),
    ],
)
def test_errors(table: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^relative_bias_table: {message}"):
        scores.RelativeBiasTable(table)
