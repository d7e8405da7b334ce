"""Compact lists: when they are made, and that the short form lists what the full one does."""

from __future__ import annotations

import pytest
import torch

from attn_mods import compact_lists, masks
from attn_mods.kernels.lists import block_lists, compacted
from attn_mods.tiles import FULL, MIXED, Grid


def test_only_on_cuda_devices() -> None:
    mask = masks.SlidingWindow(window=5)
    with pytest.raises(ValueError, match=r"^sliding_window: compact lists are for CUDA devices, got cpu; leave"):
        mask.block_mask(300, compact=True)
    with pytest.raises(TypeError, match=r"^sliding_window: compact must be True or False, got 'yes'; leave it out"):
        mask.block_mask(300, compact="yes")  # type: ignore[arg-type]
    assert mask.block_mask(300, compact=False).kv_indices.is_contiguous()


@pytest.mark.parametrize("blocks", [4095, 4096])
def test_by_itself_from_a_size_on_and_only_where_proven(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(blocks, blocks, (1, 1), device="cuda")
    for version, proven in (("2.11.0+cu130", True), ("2.13.0", False), ("2.1.1", False)):
        monkeypatch.setattr(torch, "__version__", version)
        assert compact_lists.are_wanted("rule", None, grid) == (proven and blocks == 4096)
    assert not compact_lists.are_wanted("rule", None, Grid(blocks, blocks, (1, 1)))


def test_asked_for_where_kernels_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    monkeypatch.setattr(compact_lists, "located", lambda device: device)
    grid = Grid(100, 100, device="cuda")
    monkeypatch.setattr(compact_lists, "same_bits", lambda device: False)
    with pytest.raises(RuntimeError, match=r"^rule: compact lists need kernels that .* torch 3\.0\.0"):
        compact_lists.are_wanted("rule", True, grid)
    monkeypatch.setattr(compact_lists, "same_bits", lambda device: True)
    assert compact_lists.are_wanted("rule", True, grid)


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 3), (1, 3), (2, 1)])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
def test_the_same_blocks(batch: int, heads: int, density: float) -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(1, 3, (batch, heads, 7, 11), generator=generator, dtype=torch.uint8)
    codes = kinds * (torch.rand(kinds.shape, generator=generator) < density)
    lists = [block_lists(codes, code) for code in (MIXED, FULL)]
    counts = [count.expand(2, 3, -1) for count, _ in lists]
    full = [index.expand(2, 3, -1, -1) for _, index in lists]
    short = compacted(counts, full)
    width = max(1, int(torch.stack(counts).max()))
    for count, wide, narrow in zip(counts, full, short, strict=True):
        assert narrow.shape == wide.shape
        assert narrow.stride()[2:] == (width, 1)
        counted = torch.arange(11) < count[..., None]
        assert torch.equal(narrow[counted], wide[counted])
        assert int(narrow.min()) >= 0
        assert int(narrow.max()) < 11
        own = batch * heads * 7 * width
        assert narrow.untyped_storage().nbytes() == 4 * (own + 11 - width)
