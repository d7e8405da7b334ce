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
from attn_mods.backends.structure_options import structure_options, switched_on, untrue_option
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
        ({"PRESCALE_QK": False, "num_stages": None, "BLOCK_M": 0}, set()),
        ({"PRESCALE_QK": True, "fwd_USE_TMA": 1, "bwd_BLOCK_M1": 32}, {"PRESCALE_QK", "USE_TMA", "BLOCK_M1"}),
        ({"fwd_PRESCALE_QK": False, "bwd_PRESCALE_QK": True}, {"PRESCALE_QK"}),
    ],
    ids=["none", "off", "on", "of one pass"],
)
def test_switched_on(options: Any, on: set[str]) -> None:
    assert switched_on(options) == on


PRESCALED, SAID_SAFE, SAID_CONTIGUOUS = "PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"
WINDOW = masks.SlidingWindow(300)


@pytest.mark.parametrize(
    ("recipe", "option", "needs", "q_len", "untrue"),
    [
        (Recipe(masks.Causal(), scores.Softcap(2.0)), PRESCALED, Needs(), 512, True),
        (Recipe(score=scores.HeadBias(torch.zeros(4))), PRESCALED, Needs(), 512, True),
        (Recipe(masks.Causal()), PRESCALED, Needs(), 512, False),
        (Recipe(masks.Causal()), SAID_SAFE, Needs(), 512, False),
        (Recipe(masks.Causal()), SAID_SAFE, Needs(), 127, True),
        (Recipe(WINDOW), SAID_SAFE, Needs(), 1024, True),
        (Recipe(WINDOW), SAID_CONTIGUOUS, Needs(), 1024, True),
        (Recipe(masks.Causal()), SAID_CONTIGUOUS, Needs(), 300, False),
        (Recipe(masks.Causal()), SAID_CONTIGUOUS, Needs(input_gradients=True), 300, True),
        (Recipe(WINDOW), SAID_SAFE, Needs(block_mask=True), 1024, False),
        (Recipe(masks.SlidingWindow(torch.tensor(300))), SAID_SAFE, Needs(), 1024, False),
    ],
    ids=[
        *("base 2 of a softcap", "base 2 of a bias", "base 2 of a mask", "safe", "decoding kernel", "not safe"),
        *("not contiguous", "rows alone", "rows alone while training", "lists handed in", "tensor"),
    ],
)
def test_options_that_give_another_output(recipe: Recipe, option: str, needs: Needs, q_len: int, untrue: bool) -> None:
    asked = replace(needs, switched_on=frozenset({option}))
    told = untrue_option(recipe, shapes(q_len), asked)
    assert (told is not None) == untrue
    assert told is None or option in told


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize("option", [PRESCALED, f"fwd_{PRESCALED}", f"bwd_{PRESCALED}"])
def test_they_are_refused(option: str, backend: str) -> None:
    recipe = Recipe(masks.Causal(), scores.Softcap(2.0))
    with pytest.raises(ValueError, match=r"causal with softcap: .*PRESCALE_QK hands .* leave it out"):
        am.attention(*inputs(40), recipe, backend=backend, kernel_options={option: True})


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
