"""The processor's own tanh: exact where there is none, with gradients, and within its error on a card."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.autograd import gradcheck

from attn_mods import approximate_tanh as module
from attn_mods import scores
from attn_mods.approximate_tanh import LARGEST_ERROR, approximate_tanh, lower_to_the_instruction

VALUES = torch.linspace(-9, 9, 4001)
needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own affairs


def test_is_tanh_where_there_is_no_instruction() -> None:
    assert torch.equal(approximate_tanh(VALUES), VALUES.tanh())


def code_of(factor: float) -> tuple[Tensor, str]:
    """tanh times a factor of its own, compiled: what it computes, and the program."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: approximate_tanh(x) * factor, fullgraph=True)
    got, (code,) = run_and_get_code(compiled, VALUES)
    return got, code


def test_compiled_for_a_processor_without_it_is_tanh_in_the_same_kernel() -> None:
    """Also where torch had compiled the operator before, and took it for one to call."""
    code_of(3.0)
    lower_to_the_instruction()
    got, code = code_of(2.0)
    torch.testing.assert_close(got, VALUES.tanh() * 2)
    assert "torch.ops.attn_mods" not in code


def test_compiled_for_one_with_it_is_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that is as far as it goes: the compiler has no such thing there, and says so."""
    lower_to_the_instruction()
    monkeypatch.setattr(module, "_has_the_instruction", lambda device: True)
    with pytest.raises(Exception, match=r"inline_asm_elementwise only implemented for Triton"):
        code_of(5.0)


def test_the_form_is_made_inside_a_graph() -> None:
    """As it is where attention is called in a function that its user compiles."""

    def capped(x: Tensor) -> Tensor:
        zero = torch.tensor(0)
        return scores.Softcap(5.0, approximate=True).score_mod("flex_bfloat16")(x, zero, zero, zero, zero)

    torch.testing.assert_close(torch.compile(capped, fullgraph=True)(VALUES), 5 * (VALUES / 5).tanh())


def test_gradients() -> None:
    assert gradcheck(approximate_tanh, torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True))


def test_under_vmap() -> None:
    torch.testing.assert_close(torch.vmap(approximate_tanh)(VALUES), VALUES.tanh())


@needs_a_card
def test_on_a_card_is_the_instruction_and_within_its_error() -> None:
    lower_to_the_instruction()
    compiled = torch.compile(lambda x: approximate_tanh(x) * 1.0, fullgraph=True)
    got, exact = compiled(VALUES.cuda()).double().cpu(), VALUES.double().tanh()
    error = ((got - exact).abs() / exact.abs().clamp_min(1e-12))[exact != 0]
    exact_in_float32 = 4 * torch.finfo(torch.float32).eps
    assert exact_in_float32 < float(error.max()) <= LARGEST_ERROR
