"""Which form of a score which kernel gets."""

from __future__ import annotations

import pytest
import torch

from attn_mods import scores
from attn_mods.scores import pair_bias


@pytest.mark.parametrize(
    ("backend", "form"),
    [
        ("flex", "softcap"),
        ("flex_flash", "softcap"),
        ("eager", "softcap"),
        ("plain", "softcap"),
        ("flex_float16", "softcap_by_sigmoid"),
        ("flex_bfloat16", "softcap_by_sigmoid"),
    ],
)
def test_softcap(backend: str, form: str) -> None:
    assert scores.Softcap(50.0).score_mod(backend).__name__ == form


@pytest.mark.parametrize("backend", ["flex", "flex_flash", "eager", "plain"])
def test_softcap_is_approximated_in_half_types_of_flex_alone(backend: str) -> None:
    allowed = scores.Softcap(50.0, approximate=True)
    assert allowed.score_mod(backend).__name__ == "softcap"
    for form in ("flex_float16", "flex_bfloat16"):
        assert allowed.score_mod(form).__name__ == "softcap_by_instruction"


@pytest.mark.parametrize("form", ["flex", "flex_float16", "flex_bfloat16", "eager"])
def test_a_large_table_has_every_form_of_flex(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_bias, "LARGEST_INDEX", 10)
    assert scores.PairBias(torch.zeros(1, 1, 4, 4)).score_mod(form).__name__ == "pair_bias"


@pytest.mark.parametrize("form", ["flex", "flex_float16", "flex_bfloat16"])
@pytest.mark.parametrize("cap", [1.0, 50.0])
@pytest.mark.parametrize("approximate", [False, True], ids=["exact", "approximate"])
def test_every_form_of_softcap_is_the_rule_in_float32(approximate: bool, cap: float, form: str) -> None:
    score, zero = torch.linspace(-3 * cap, 3 * cap, 101), torch.tensor(0)
    got = scores.Softcap(cap, approximate).score_mod(form)(score, zero, zero, zero, zero)
    torch.testing.assert_close(got, cap * torch.tanh(score / cap), atol=5e-7 * cap, rtol=0)
