"""Block lists against the stable sort they stand for."""

from __future__ import annotations

import pytest
import torch

from attn_mods.kernels import lists
from attn_mods.kernels.lists import block_lists


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 9, 64), (2, 1, 0, 4), (1, 1, 3, 0)])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 15])
def test_lists_are_a_stable_sort(
    share: float, shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_CHUNK", chunk)
    chosen = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < share
    counts, indices = block_lists(chosen.byte(), 1)
    order = torch.sort(chosen.byte(), dim=-1, descending=True, stable=True).indices
    assert counts.dtype == indices.dtype == torch.int32
    assert torch.equal(counts, chosen.sum(-1).int())
    assert torch.equal(indices, order.int())


def test_lists_of_a_transposed_plane() -> None:
    chosen = torch.rand(1, 1, 6, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    counts, indices = block_lists(chosen.byte().transpose(-2, -1), 1)
    expected_counts, expected_indices = block_lists(chosen.byte().transpose(-2, -1).contiguous(), 1)
    assert torch.equal(counts, expected_counts)
    assert torch.equal(indices, expected_indices)
