"""Area attention against the reshape of the authors' code."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import Area


@pytest.mark.parametrize(("tokens", "area"), [(8, 4), (12, 3), (12, 1), (12, 12), (400, 4)])
def test_a_reshape_into_area_samples_is_the_same(tokens: int, area: int) -> None:
    numbers = torch.arange(tokens)
    together = torch.zeros(tokens, tokens, dtype=torch.bool)
    for sample in numbers.reshape(area, tokens // area):
        together[sample[:, None], sample] = True
    assert torch.equal(Area(tokens, area).dense(tokens, tokens), together)


@pytest.mark.parametrize(
    ("tokens", "area", "error", "text"),
    [
        (10, 4, ValueError, "area: area must divide tokens, got 10 tokens and area 4"),
        (8, 0, ValueError, "area: area must be >= 1, got 0"),
        (8, "4", TypeError, "area: area must be an int"),
    ],
)
def test_errors(tokens: int, area: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Area(tokens, area)


def test_another_number_of_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="describe 400 tokens, so the keys must end at 400, got 1600"):
        Area(tokens=400, area=4).place(1600, 1600)
