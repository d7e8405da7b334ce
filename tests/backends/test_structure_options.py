"""Structure facts as kernel options: which are passed, and when none is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.algebra import And
from attn_mods.backends import Call, Needs, Shapes, flex
from attn_mods.backends.structure_options import option_refusal, options_on, structure_options
from attn_mods.mask import Mask
from tests.attention_inputs import inputs

CUDA = torch.device("cuda")
INFERENCE, TRAINING = Needs(), Needs(input_gradients=True)
SAFE, FORWARD, BACKWARD = "fwd_ROWS_GUARANTEED_SAFE", "fwd_BLOCKS_ARE_CONTIGUOUS", "bwd_BLOCKS_ARE_CONTIGUOUS"


def shapes(q_len: int, kv_len: int | None = None) -> Shapes:
    return Shapes(2, 4, 2, q_len, q_len if kv_len is None else kv_len, 64, 64)


def passed(
    recipe: Recipe | Mask | None, q_len: int = 512, kv_len: int | None = None, needs: Needs = TRAINING, given: Any = ()
) -> set[str]:
    options = structure_options(Recipe.of(recipe), shapes(q_len, kv_len), CUDA, needs, given)
    assert all(value is True for value in options.values())
    return set(options)


@pytest.mark.parametrize(
    ("recipe", "q_len", "kv_len", "needs", "expected"),
    [
        (masks.Causal(), 512, 512, TRAINING, {SAFE, FORWARD, BACKWARD}),
        (masks.Causal(), 512, 512, Needs(parameter_gradients=True), {SAFE, FORWARD, BACKWARD}),
        (masks.Causal(), 512, 512, INFERENCE, {SAFE, FORWARD}),
        (masks.Causal(), 300, 300, TRAINING, {SAFE, FORWARD}),
        (masks.Causal(), 127, 127, TRAINING, {FORWARD, BACKWARD}),
        (masks.Causal(), 128, 128, TRAINING, {SAFE, FORWARD, BACKWARD}),
        (masks.Causal().shift(q=127), 128, 512, INFERENCE, {FORWARD}),
        (masks.SlidingWindow(100), 1024, 1024, TRAINING, {FORWARD, BACKWARD}),
        (masks.SlidingWindow(300), 1024, 1024, TRAINING, set()),
        (Recipe(masks.Causal(), scores.Softcap(2.0)), 512, 512, INFERENCE, {FORWARD}),
        (None, 300, 77, TRAINING, {SAFE, FORWARD, BACKWARD}),
        (None, 1, 77, INFERENCE, {FORWARD}),
        (Recipe(score=scores.Softcap(2.0)), 300, 77, INFERENCE, {FORWARD}),
        (masks.DilatedWindow(3, 2), 512, 512, TRAINING, set()),
        (masks.SlidingWindow(torch.tensor(100)), 512, 512, TRAINING, set()),
        (masks.Document(torch.tensor([0, 512])), 512, 512, TRAINING, set()),
    ],
    ids=[
        *("causal", "parameters train", "inference", "ragged", "decoding kernel", "main kernel", "offset 127"),
        *("window in a block", "window of three blocks", "score", "no mask", "no mask, one query", "score alone"),
        *("dilated", "tensor", "documents"),
    ],
)
def test_passed(recipe: Any, q_len: int, kv_len: int, needs: Needs, expected: set[str]) -> None:
    assert passed(recipe, q_len, kv_len, needs) == expected


@pytest.mark.parametrize(
    "needs",
    [Needs(block_mask=True), Needs(invariant=True), Needs(compiling=True)],
    ids=["lists handed in", "invariant", "compiling"],
)
def test_none_where_lists_or_lengths_are_not_known(needs: Needs) -> None:
    assert passed(masks.Causal(), needs=needs) == set()


@pytest.mark.parametrize("device", ["cpu", "xpu", "mps"])
def test_none_on_other_devices(device: str) -> None:
    assert structure_options(Recipe.of(masks.Causal()), shapes(512), torch.device(device), TRAINING, ()) == {}


def test_documents_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting two sets of boundaries waits for the device."""

    def unexpected(mask: And) -> None:
        raise AssertionError("boundaries must not be read")

    documents = masks.Document(torch.tensor([0, 512])) & masks.Document(torch.tensor([0, 100, 512]))
    monkeypatch.setattr(And, "band", unexpected)
    assert passed(documents) == set()
    with pytest.raises(AssertionError, match="must not be read"):
        passed(masks.Causal() & masks.SlidingWindow(5))


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("BLOCKS_ARE_CONTIGUOUS", {SAFE}),
        ("fwd_BLOCKS_ARE_CONTIGUOUS", {SAFE}),
        ("bwd_BLOCKS_ARE_CONTIGUOUS", {SAFE}),
        ("ROWS_GUARANTEED_SAFE", {FORWARD, BACKWARD}),
        ("fwd_ROWS_GUARANTEED_SAFE", {FORWARD, BACKWARD}),
        ("BLOCK_M", {SAFE, FORWARD, BACKWARD}),
    ],
)
def test_the_callers_own_options_win(given: str, left: set[str]) -> None:
    assert passed(masks.Causal(), given=[given]) == left


@pytest.mark.parametrize(
    ("options", "on"),
    [
        (None, set()),
        ({"PRESCALE_QK": False}, set()),
        ({"PRESCALE_QK": True, "bwd_BLOCK_M1": 32}, {"fwd_PRESCALE_QK", "bwd_PRESCALE_QK", "bwd_BLOCK_M1"}),
        ({"bwd_PRESCALE_QK": True}, {"bwd_PRESCALE_QK"}),
        ({"PRESCALE_QK": True, "fwd_PRESCALE_QK": False}, {"bwd_PRESCALE_QK"}),
        ({"PRESCALE_QK": True, "fwd_PRESCALE_QK": False, "bwd_PRESCALE_QK": False}, set()),
    ],
    ids=["none", "off", "both passes and one", "one pass", "off in one", "off in each"],
)
def test_options_on(options: Any, on: set[str]) -> None:
    assert options_on(options) == on


CAPPED, BIASED = Recipe(masks.Causal(), scores.Softcap(2.0)), Recipe(score=scores.HeadBias(torch.zeros(4)))
WINDOW = masks.SlidingWindow(300)
PRESCALED, SAID_SAFE, SAID_CONTIGUOUS = "PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"
REFUSED: dict[str, tuple[Any, str, Needs, int]] = {
    "base 2 of a softcap": (CAPPED, PRESCALED, INFERENCE, 512),
    "base 2 of a bias": (BIASED, PRESCALED, INFERENCE, 512),
    "base 2 of a gradient": (CAPPED, "bwd_PRESCALE_QK", TRAINING, 512),
    "base 2 while compiling": (CAPPED, PRESCALED, Needs(compiling=True), 512),
    "decoding kernel": (masks.Causal(), SAID_SAFE, INFERENCE, 127),
    "not safe": (WINDOW, SAID_SAFE, INFERENCE, 1024),
    "not contiguous": (WINDOW, SAID_CONTIGUOUS, INFERENCE, 1024),
    "rows alone": (masks.Causal(), SAID_CONTIGUOUS, TRAINING, 300),
    "rows alone, backward": (masks.Causal(), "bwd_BLOCKS_ARE_CONTIGUOUS", TRAINING, 300),
}
TAKEN: dict[str, tuple[Any, str, Needs, int]] = {
    "base 2 of a mask": (masks.Causal(), PRESCALED, TRAINING, 512),
    "no backward": (CAPPED, "bwd_PRESCALE_QK", INFERENCE, 512),
    "safe": (masks.Causal(), SAID_SAFE, INFERENCE, 512),
    "backward reads no such claim": (WINDOW, "bwd_ROWS_GUARANTEED_SAFE", TRAINING, 1024),
    "rows alone, forward": (masks.Causal(), "fwd_BLOCKS_ARE_CONTIGUOUS", TRAINING, 300),
    "rows alone, no gradients": (masks.Causal(), SAID_CONTIGUOUS, INFERENCE, 300),
    "lists handed in": (WINDOW, SAID_SAFE, Needs(block_mask=True), 1024),
    "lengths may be symbols": (WINDOW, SAID_SAFE, Needs(compiling=True), 1024),
    "tensor": (masks.SlidingWindow(torch.tensor(300)), SAID_SAFE, INFERENCE, 1024),
    "no band": (~masks.Causal(), SAID_SAFE, INFERENCE, 1024),
}


def refusal_of(recipe: Recipe | Mask, option: str, needs: Needs, q_len: int) -> str | None:
    asked = replace(needs, options_on=options_on({option: True}))
    return option_refusal(Recipe.of(recipe), shapes(q_len), asked)


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_give_another_output(name: str) -> None:
    told = refusal_of(*REFUSED[name])
    assert told is not None and REFUSED[name][1].removeprefix("bwd_") in told and "leave it out" in told


@pytest.mark.parametrize("name", TAKEN)
def test_options_that_do_not_or_are_the_callers_word(name: str) -> None:
    assert refusal_of(*TAKEN[name]) is None


@pytest.mark.parametrize("needs", [INFERENCE, TRAINING], ids=["inference", "training"])
@pytest.mark.parametrize("mask", [masks.Causal(), masks.SlidingWindow(100), WINDOW, None], ids=str)
@pytest.mark.parametrize("q_len", [100, 300, 1024])
def test_what_attention_tells_a_kernel_a_caller_may_tell_it(mask: Mask | None, q_len: int, needs: Needs) -> None:
    for option in passed(mask, q_len, needs=needs):
        assert refusal_of(Recipe.of(mask), option, needs, q_len) is None


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize("option", [PRESCALED, f"fwd_{PRESCALED}"])
def test_they_are_refused(option: str, backend: str) -> None:
    with pytest.raises(
        ValueError, match=r"causal with softcap: .*none \(flex: with the .*PRESCALE_QK .* leave it out\)"
    ):
        am.attention(*inputs(40), CAPPED, backend=backend, kernel_options={option: True})


def test_invariant_sets_its_own() -> None:
    with pytest.raises(ValueError, match=r"causal: .*none \(flex: invariant=True sets .* leave kernel_options out\)"):
        am.attention(*inputs(40), masks.Causal(), invariant=True, kernel_options={"FORCE_USE_FLEX_ATTENTION": False})


def options_on_a_gpu(given: dict[str, Any] | None, needs: Needs = INFERENCE) -> Any:
    call: Any = SimpleNamespace(
        q=SimpleNamespace(device=CUDA),
        recipe=Recipe.of(masks.Causal()),
        shapes=shapes(512),
        needs=needs,
        kernel_options=given,
    )
    return flex.FLEX.kernel_options(call, None)


def test_flex_passes_them_beside_the_callers() -> None:
    assert options_on_a_gpu(None) == {SAFE: True, FORWARD: True}
    given = {"BLOCKS_ARE_CONTIGUOUS": False, "BLOCK_M": 64}
    assert options_on_a_gpu(given) == {SAFE: True, **given}
    assert options_on_a_gpu(None, Needs(invariant=True)) == flex.INVARIANT_OPTIONS


def test_flex_passes_none_on_a_cpu() -> None:
    q, k, v = inputs(200)
    assert flex.FLEX.kernel_options(Call(q, k, v, Recipe.of(masks.Causal()), INFERENCE), None) is None
