"""The examples that big_vision and openpi give in words, padding, and errors."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import CumsumAr


def groups(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("mask_ar", "visible"),
    [
        pytest.param((1, 1, 1, 1, 1, 1), (1, 2, 3, 4, 5, 6), id="causal"),
        pytest.param((0, 0, 0, 1, 1, 1), (3, 3, 3, 4, 5, 6), id="prefix"),
        pytest.param((1, 0, 0, 1, 1, 1), (3, 3, 3, 4, 5, 6), id="prefix, first entry 1"),
        pytest.param((1, 0, 1, 0, 1, 0, 0, 1, 0, 0), (2, 2, 4, 4, 7, 7, 7, 10, 10, 10), id="four blocks"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_published_examples(mask_ar: tuple[int, ...], visible: tuple[int, ...], dtype: torch.dtype) -> None:
    length = len(mask_ar)
    dense = CumsumAr(groups(*mask_ar).to(dtype)).dense(length, length)
    assert dense.tolist() == [[j < end for j in range(length)] for end in visible]


def test_padding_hides_padded_queries_too() -> None:
    valid = torch.tensor([True, True, False, True, False])
    dense = CumsumAr(groups(0, 0, 0, 1, 1), valid).dense(5, 5)
    assert dense.int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5, [1, 1, 0, 1, 0], [0] * 5]


def test_the_definition_pair_by_pair() -> None:
    generator = torch.Generator().manual_seed(3)
    mask_ar = torch.randint(0, 2, (3, 20), generator=generator)
    valid = torch.rand(3, 20, generator=generator) < 0.8
    dense = CumsumAr(mask_ar, valid).dense(20, 20)
    for b in range(3):
        for i in range(20):
            for j in range(20):
                later = int(mask_ar[b, : j + 1].sum()) > int(mask_ar[b, : i + 1].sum())
                assert bool(dense[b, 0, i, j]) == (not later and bool(valid[b, i]) and bool(valid[b, j]))


def test_one_row_serves_every_sample() -> None:
    one = CumsumAr(groups(0, 0, 1, 1)[None], torch.tensor([[True, True, True, False]]))
    assert one.batch_and_heads() == (1, 1)
    rule = one.mask_mod()
    b, h, i, j = torch.tensor(5), torch.tensor(0), torch.tensor(2), torch.tensor(1)
    assert bool(rule(b, h, i, j)) and not bool(rule(b, h, i, j + 2))


@pytest.mark.parametrize(
    ("mask_ar", "valid", "error", "text"),
    [
        (groups(0, 1, 2), None, ValueError, "cumsum_ar: mask_ar must be 0 or 1, got a largest value of 2"),
        (groups(0, -1, 1), None, ValueError, "cumsum_ar: mask_ar must be >= 0"),
        (torch.zeros(3), None, TypeError, "cumsum_ar: mask_ar must be"),
        (groups(0, 1), groups(1, 1), TypeError, "cumsum_ar: valid must be a boolean tensor"),
        (groups(0, 1), torch.ones(3, dtype=torch.bool), ValueError, "cumsum_ar: valid must have S = 2"),
        (groups(0, 1).expand(2, 2), torch.ones(3, 2, dtype=torch.bool), ValueError, "must be 1 or equal"),
    ],
)
def test_errors(mask_ar: torch.Tensor, valid: torch.Tensor | None, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        CumsumAr(mask_ar, valid)
