"""A user's function that reads b or h is evaluated for all of them, whether or not it says how many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Mask, Recipe, Score, masks
from attn_mods.tiles.grid import BATCH, HEAD
from attn_mods.user_function import variables_read
from tests.attention_inputs import inputs

LENGTHS, WINDOWS, SLOPES = torch.tensor([3, 30]), torch.tensor([1, 5, 9, 40]), torch.tensor([1.0, 0.5, -2.0, 0.0])


def in_place(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    distance = q_idx - kv_idx
    distance.mul_(2)
    return distance > b


def louder(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score * SLOPES[h] + b


MASKS: dict[str, tuple[Callable[..., Tensor], tuple[int, int]]] = {
    "b": (lambda b, h, q_idx, kv_idx: (b == 0) | (q_idx == kv_idx), (2, 1)),
    "table of b": (lambda b, h, q_idx, kv_idx: kv_idx < LENGTHS[b], (2, 1)),
    "h": (lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < WINDOWS[h], (1, 4)),
    "both": (lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < WINDOWS[h] + b, (2, 4)),
    "neither": (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, (1, 1)),
    "nothing of h": (lambda b, h, q_idx, kv_idx: q_idx - kv_idx < WINDOWS[h * 0], (1, 1)),
    "cannot be recorded": (in_place, (2, 4)),
}


def truth(rule: Callable[..., Tensor]) -> Tensor:
    """The rule in four loops."""
    axes = [[torch.tensor(n) for n in range(size)] for size in (2, 4, 12, 12)]
    values = [rule(b, h, i, j) for b in axes[0] for h in axes[1] for i in axes[2] for j in axes[3]]
    return torch.stack(values).reshape(2, 4, 12, 12)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("name", MASKS)
def test_sizes_come_from_q(name: str) -> None:
    rule, sizes = MASKS[name]
    mask = Mask.from_mask_mod(rule, frame="cross", name="users")
    assert mask.sized(2, 4).batch_and_heads() == sizes
    visible = truth(rule)
    assert torch.equal(mask.sized(2, 4).dense(12, 12).expand(2, 4, 12, 12), visible)
    q, k, v = inputs(12, key_heads=4)
    weights = (q @ k.transpose(-2, -1) / 4).double().masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)
    expected = weights @ v.double()
    torch.testing.assert_close(am.reference(q, k, v, mask), expected, atol=1e-6, rtol=1e-6)
    # What flex is given is traced, and computed without generating code; what cannot be recorded cannot be traced.
    for backend in ("eager", "sdpa_math") if rule is in_place else ("flex", "eager", "sdpa_math"):
        with torch.no_grad():
            out = am.attention(q, k, v, mask & masks.Full(), backend=backend)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["flex", "eager"])
def test_scores(backend: str) -> None:
    tensors = inputs(12)
    score = Score.from_score_mod(louder)
    assert score.sized(2, 4).batch_and_heads() == (2, 4)
    with torch.no_grad():
        out = am.attention(*tensors, Recipe(masks.Causal(), score), backend=backend)
    torch.testing.assert_close(
        out.double(), am.reference(*tensors, Recipe(masks.Causal(), score)), atol=1e-5, rtol=1e-5
    )


def test_the_block_mask_of_a_rule_says_how_many() -> None:
    mask = Mask.from_mask_mod(MASKS["b"][0], name="users")
    for needs_a_size in (mask.block_mask, mask.dense):
        arguments = (40,) if needs_a_size == mask.block_mask else (40, 40)
        with pytest.raises(ValueError, match="users: the rule reads b, so B must be stated, got none; pass B="):
            needs_a_size(*arguments)
    lists = mask.block_mask(40, B=2)
    assert lists.shape[:2] == (2, 1)
    assert torch.equal(lists.kv_num_blocks, am.create_block_mask(mask.rule, 2, 1, 40, 40, "cpu").kv_num_blocks)
    am.explain(*inputs(40), mask, block_mask=lists)
    composed = (mask & masks.Causal()) | Mask.from_mask_mod(MASKS["h"][0])
    assert composed.block_mask(40, B=2, H=4).shape[:2] == (2, 4)


def test_one_that_is_stated_wrongly_is_refused() -> None:
    mask = Mask.from_mask_mod(MASKS["b"][0], B=1, name="users")
    message = "users: the rule reads b, so its B must be 2, got 1; leave B out, or pass B=2"
    with pytest.raises(ValueError, match=message):
        am.attention(*inputs(40), mask)
    with pytest.raises(ValueError, match=message):
        am.reference(*inputs(40), mask)
    with pytest.raises(ValueError, match=message):
        mask.block_mask(40, B=2)
    with pytest.raises(ValueError, match=r"its H must be 4, got 1"):
        am.attention(*inputs(40), Score.from_score_mod(louder, H=1))
    am.explain(*inputs(40, batch=1), mask)
    with pytest.raises(ValueError, match=r"parameters must have B = 2 as q has, or 1, got 3"):
        am.attention(*inputs(40), Mask.from_mask_mod(MASKS["b"][0], B=3))


def test_a_value_that_changes_what_is_read() -> None:
    settings = {"per_sample": False}

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx < LENGTHS[b] if settings["per_sample"] else kv_idx < 5

    assert variables_read(rule, False) == 0
    settings["per_sample"] = True
    assert variables_read(rule, False) == BATCH


def test_a_score_that_cannot_be_recorded_is_taken_to_read_both() -> None:
    def score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score if q_idx > 0 else -score

    assert variables_read(score, True) == BATCH | HEAD
    assert variables_read(lambda score, b, h, q_idx, kv_idx: score * SLOPES[h], True) == HEAD


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3,), {}, TypeError, "the rule must be callable, got 3"),
        ((in_place,), {"B": 0}, ValueError, "in_place: B must be >= 1, got 0"),
        ((in_place,), {"H": 2.0}, TypeError, r"in_place: H must be an int, got 2\.0"),
        ((in_place,), {"H": torch.tensor(2)}, TypeError, "in_place: H must be an int"),
        ((in_place,), {"frame": "selfish"}, ValueError, "unknown frame, got 'selfish'; use one of self, cross, keys"),
    ],
)
@pytest.mark.parametrize("make", [Mask.from_mask_mod, Score.from_score_mod], ids=["mask", "score"])
def test_what_is_checked_when_it_is_made(
    make: Any, arguments: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(*arguments, **options)


class TestCapturedTensors:
    @staticmethod
    def of(bias: Tensor) -> Score:
        return Score.from_score_mod(lambda score, b, h, q_idx, kv_idx: score + bias[h], name="added")

    def test_gradients_are_seen(self) -> None:
        q, k, v = inputs(12)
        ours, theirs = (torch.linspace(-1, 1, 4).requires_grad_() for _ in range(2))
        recipe = Recipe(masks.SlidingWindow(3), self.of(ours) >> am.scores.Softcap(2.0))
        assert am.explain(q, k, v, recipe).chosen == "eager"
        assert "gradients" in str(am.explain(q, k, v, recipe).rows[0].reason)
        am.attention(q, k, v, recipe).square().sum().backward()
        truth = Recipe(masks.SlidingWindow(3), am.scores.HeadBias(theirs) >> am.scores.Softcap(2.0))
        am.reference(q, k, v, truth).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            assert am.explain(q, k, v, recipe).chosen == "flex"

    def test_no_gradient_flows_through_a_mask(self) -> None:
        threshold = torch.tensor(3.0, requires_grad=True)
        mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx - kv_idx < threshold)
        assert am.explain(*inputs(12), mask).chosen == "flex"

    def test_devices_are_checked(self) -> None:
        with pytest.raises(ValueError, match="added: its tensors must be on cpu as q is, got meta"):
            am.attention(*inputs(12), self.of(torch.zeros(4, device="meta")))
