"""Band: what fixed-function kernels are told is the same mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_mods import masks, registry
from attn_mods.band import Band
from attn_mods.mask import Mask

WITH_BAND = [
    (entry.name, name)
    for entry in map(registry.info, registry.names(kind="mask"))
    for name, case in entry.cases.items()
    if case.make(*(case.lengths or ((97, 97),))[0], "cpu").band() is not None
]


def band_matrix(band: Band, q_len: int, kv_len: int) -> Tensor:
    """A Band as its docstring says."""
    i, j = torch.arange(q_len)[:, None], torch.arange(kv_len)[None, :]
    kept = torch.ones(q_len, kv_len, dtype=torch.bool)
    if band.left is not None:
        kept &= j >= i - band.left
    if band.right is not None:
        kept &= j <= i + band.right
    if band.cu_seqlens is not None:
        document = sum((torch.arange(max(q_len, kv_len)) >= start).long() for start in band.cu_seqlens[1:].tolist())
        kept &= document[:q_len, None] == document[None, :kv_len]
    return kept


def assert_equal(mask: Mask, q_len: int, kv_len: int) -> None:
    band = mask.band()
    assert band is not None
    dense = mask.dense(q_len, kv_len)
    assert torch.equal(band_matrix(band, q_len, kv_len).expand_as(dense), dense)


@pytest.mark.parametrize(("name", "case_name"), WITH_BAND, ids=lambda value: value)
def test_band_is_the_mask(name: str, case_name: str) -> None:
    case = registry.info(name).cases[case_name]
    q_len, kv_len = (case.lengths or ((97, 97),))[0]
    assert_equal(case.make(q_len, kv_len, "cpu"), q_len, kv_len)


def test_the_catalogue_has_bands() -> None:
    assert {"full", "causal", "sliding_window", "document", "document_causal"} <= {name for name, _ in WITH_BAND}


def test_and_takes_the_smaller_bounds_and_all_boundaries() -> None:
    documents = masks.Document(torch.tensor([0, 10, 40])) & masks.Document(torch.tensor([0, 25, 40]))
    mask = documents & masks.SlidingWindow(7) & masks.Causal()
    assert_equal(mask, 40, 40)
    band = mask.band()
    assert band is not None
    assert (band.left, band.right) == (6, 0)
    assert band.cu_seqlens is not None
    assert band.cu_seqlens.tolist() == [0, 10, 25, 40]


@pytest.mark.parametrize("shift", [(0, 0), (5, 0), (0, 5), (9, 4)], ids=str)
@pytest.mark.parametrize("mask", [masks.Causal(), masks.SlidingWindow(4), masks.Full()], ids=lambda mask: mask.name)
def test_shift_moves_the_bounds(mask: Mask, shift: tuple[int, int]) -> None:
    assert_equal(mask.shift(q=shift[0], kv=shift[1]), 20, 30)


def test_no_band() -> None:
    assert (masks.Causal() | masks.SlidingWindow(3)).band() is None
    assert (~masks.Causal()).band() is None
    assert masks.SlidingWindow(torch.tensor(3)).band() is None
    assert masks.Causal().shift(q=torch.tensor(3)).band() is None
    assert masks.Causal().shift(q=-3).band() is None
    assert masks.Document(torch.tensor([0, 4, 9])).shift(q=2).band() is None


def test_per_document_cuts_the_band() -> None:
    assert_equal(masks.SlidingWindow(3).per_document(torch.tensor([0, 4, 9])), 9, 9)
