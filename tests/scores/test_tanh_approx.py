"""The card's own tanh is torch's wherever there is no such instruction, with its gradient, under vmap too."""

from __future__ import annotations

import pytest
import torch

from attn_mods import scores
from attn_mods.scores._tanh_approx import tanh_approx, teach_compiler


def test_values_and_gradient() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(tanh_approx(x), torch.tanh(x))
    (gradient,) = torch.autograd.grad(tanh_approx(x).sum(), x)
    torch.testing.assert_close(gradient, 1 - torch.tanh(x) ** 2)


def test_under_vmap() -> None:
    x = torch.linspace(-4, 4, 12).reshape(3, 4)
    torch.testing.assert_close(torch.vmap(torch.vmap(tanh_approx))(x), torch.tanh(x))


def test_the_compiler_is_taught_once() -> None:
    teach_compiler()
    teach_compiler()
    assert torch.ops.attn_mods.tanh_approx.default in torch._inductor.lowering.lowerings


@pytest.mark.parametrize("backend", ["flex", "flex_float16", "flex_flash", "eager", "sdpa_math", "plain"])
def test_only_one_form_is_approximate(backend: str) -> None:
    exact, approximate = (scores.Softcap(50.0, approximate=each).score_mod(backend) for each in (False, True))
    assert exact.__code__ is approximate.__code__
    forms = (scores.Softcap(50.0, approximate=each).score_mod("flex_bfloat16") for each in (False, True))
    assert len({form.__code__ for form in forms}) == 2


@pytest.mark.parametrize("form", ["flex", "flex_float16", "flex_bfloat16"])
@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("cap", [1.0, 50.0])
def test_every_form_is_the_rule(cap: float, approximate: bool, form: str) -> None:
    score = torch.linspace(-3 * cap, 3 * cap, 101)
    zero = torch.tensor(0)
    got = scores.Softcap(cap, approximate).score_mod(form)(score, zero, zero, zero, zero)
    torch.testing.assert_close(got, cap * torch.tanh(score / cap), atol=5e-7 * cap, rtol=1e-5)
