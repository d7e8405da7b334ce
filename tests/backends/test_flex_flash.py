"""flex_flash: what it refuses, what tells its plans apart, how lse is corrected. The kernel itself needs a card."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, backends, masks, registry, scores
from attn_mods.backends import Needs, Shapes, flex_flash, packages
from attn_mods.backends.base import Call
from attn_mods.backends.flash_operations import reads_positions, unseen_in
from attn_mods.backends.flex_flash import FLEX_FLASH
from attn_mods.score import UserScore
from attn_mods.user_rule import UserRule

CUDA = torch.device("cuda")
SHAPES = Shapes(1, 4, 4, 64, 64, 32, 32)
GROUPED = Shapes(1, 4, 2, 64, 64, 32, 32)
TRAINING = Needs(input_gradients=True)


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_flash, "installed", lambda module: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.parametrize("name", am.names(kind="mask") + am.names(kind="score"))
def test_rules_that_were_seen(name: str) -> None:
    case = registry.info(name).cases["bench" if "bench" in registry.info(name).cases else "tiny"]
    q_len, kv_len = (case.lengths or ((64, 64),))[0]
    recipe = Recipe.of(case.make(q_len, kv_len, "cpu")).sized(1, 4)
    assert unseen_in(recipe, "flex_flash") is None


def test_rules_that_were_not_seen() -> None:
    rounded = UserScore(lambda score, b, h, q_idx, kv_idx: score.round())
    assert unseen_in(Recipe(masks.Causal(), rounded), "flex_flash") == "the operation round"
    two = UserRule(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).cumsum(0) >= 0)
    assert unseen_in(Recipe(two), "flex_flash") == "the operation cumsum"


TABLE = torch.zeros(3, 4)


@dataclass(slots=True)
class Switch:
    """What a rule may branch on, and nothing can look into."""

    on: bool


def shifts(steps: Any) -> Callable[..., Tensor]:
    def rule(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        for step in range(steps) if isinstance(steps, int) else steps:
            score = score + (q_idx - kv_idx) * step
        return score

    return rule


def reads_row(table: Tensor) -> Callable[..., Tensor]:
    def rule(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score if table.shape[0] == 1 else score + table[h]

    return rule


def switched(switch: Switch) -> Callable[..., Tensor]:
    def rule(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + q_idx if switch.on else score

    return rule


@pytest.mark.parametrize(
    ("without", "with_positions"),
    [
        (shifts(0), shifts(3)),
        (shifts(range(0)), shifts(range(3))),
        (reads_row(torch.zeros(1)), reads_row(torch.zeros(4))),
        (switched(Switch(False)), switched(Switch(True))),
    ],
    ids=["int", "range", "shape", "object"],
)
def test_what_is_known_of_one_rule_is_not_taken_for_another(
    without: Callable[..., Tensor], with_positions: Callable[..., Tensor]
) -> None:
    """The code of both is one; which of its branches runs is not."""
    for _ in range(2):
        assert not reads_positions(UserScore(without), "flex_flash")
        assert reads_positions(UserScore(with_positions), "flex_flash")


def test_a_position_as_the_score_is_read() -> None:
    assert reads_positions(UserScore(lambda score, b, h, q_idx, kv_idx: kv_idx), "flex_flash")


def test_a_moved_score_reads_what_is_inside() -> None:
    assert not reads_positions(scores.Softcap(5.0).shift(q=7), "flex_flash")
    assert reads_positions(scores.Alibi(num_heads=4).shift(q=7), "flex_flash")


@pytest.mark.parametrize(
    ("rule", "is_seen"),
    [
        (lambda score, b, h, q_idx, kv_idx: score + TABLE[h, q_idx], True),
        (lambda score, b, h, q_idx, kv_idx: score + TABLE[0, h], False),
        (lambda score, b, h, q_idx, kv_idx: score + TABLE[1][h], False),
    ],
    ids=["positions", "number", "row"],
)
def test_tables_read_at_a_number(rule: Callable[..., Tensor], is_seen: bool) -> None:
    unseen = unseen_in(Recipe(masks.Causal(), UserScore(rule)), "flex_flash")
    assert unseen == (None if is_seen else "a captured tensor that is read at a number")


@pytest.mark.parametrize("name", am.names(kind="score"))
def test_what_a_score_reads(name: str) -> None:
    score = registry.info(name).cases["bench"].make(64, 64, "cpu")
    assert reads_positions(score, "flex_flash") == (name != "softcap")


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("shapes", [SHAPES, GROUPED], ids=str)
@pytest.mark.parametrize("name", am.names(kind="score"))
def test_gradients_of_grouped_heads(name: str, shapes: Shapes) -> None:
    recipe = Recipe(masks.Causal(), registry.info(name).cases["bench"].make(64, 64, "cpu"))
    assert FLEX_FLASH.limits(recipe, shapes, torch.bfloat16, CUDA, Needs()) is None
    refused = FLEX_FLASH.limits(recipe, shapes, torch.bfloat16, CUDA, TRAINING)
    assert (refused is not None) == (shapes is GROUPED and name != "softcap")
    assert refused is None or "grouped heads" in refused.text


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("recipe", "needs", "dtype", "reason"),
    [
        (Recipe(masks.Causal()), Needs(), torch.float32, "needs float16 or bfloat16"),
        (Recipe(masks.Causal()), Needs(kernel_options=True), torch.float16, "no kernel_options"),
        (Recipe(masks.Causal()), Needs(invariant=True), torch.float16, "no kernel_options"),
        (Recipe(masks.Causal()), Needs(compiling=True), torch.float16, "lengths may be symbols"),
        (Recipe(masks.Causal()), Needs(lse=True, input_gradients=True), torch.float16, "has no gradient"),
        (Recipe(sink=torch.zeros(4)), Needs(input_gradients=True), torch.float16, "has no gradient"),
        (
            Recipe(masks.Causal()),
            Needs(parameter_gradients=True),
            torch.float16,
            "no gradients of what a score captures",
        ),
        (Recipe(masks.SlidingWindow(torch.tensor(5))), Needs(), torch.float16, "a captured tensor of no dimension"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_refused(recipe: Recipe, needs: Needs, dtype: torch.dtype, reason: str) -> None:
    refused = FLEX_FLASH.limits(recipe, SHAPES, dtype, CUDA, needs)
    assert refused is not None and reason in refused.text


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("mask", [masks.Causal(), masks.SlidingWindow(5), masks.PrefixLm(3)], ids=str)
def test_taken(mask: am.Mask) -> None:
    assert FLEX_FLASH.limits(Recipe(mask), SHAPES, torch.bfloat16, CUDA, Needs(input_gradients=True)) is None


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (Shapes(1, 4, 4, 64, 64, 256, 256), "at most 128"),
        (Shapes(1, 4, 4, 64, 64, 36, 36), "multiples of 8"),
        (Shapes(1, 4, 4, 1, 64, 32, 32), "not for a single query"),
    ],
    ids=str,
)
def test_refused_sizes(shapes: Shapes, reason: str) -> None:
    refused = FLEX_FLASH.limits(Recipe(), shapes, torch.float16, CUDA, Needs())
    assert refused is not None and reason in refused.text


def test_a_bare_block_mask_is_refused() -> None:
    q = torch.randn(1, 4, 64, 32)
    row = next(
        row for row in am.explain(q, q, q, block_mask=masks.Causal().block_mask(64)).rows if row.backend == "flex_flash"
    )
    assert not row.runs


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_flash, "installed", lambda module: False)
    refused = FLEX_FLASH.limits(Recipe(masks.Causal()), SHAPES, torch.float16, CUDA, Needs())
    assert refused is not None and refused.text == "flash-attn-4 is not installed"


def test_each_number_and_length_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[object] = []
    monkeypatch.setattr(flex_flash, "plan_for", lambda key, mode, lengths: keys.append(key))
    for window, length in ((5, 64), (6, 64), (5, 128), (5, 64)):
        mask = masks.SlidingWindow(window)
        q = torch.randn(1, 4, length, 32)
        call = Call(q, q, q, Recipe(mask), Needs())
        FLEX_FLASH.plan(call, q, q, q, None, mask.block_mask(length), None, False, {"BACKEND": "FLASH"})
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


@pytest.mark.parametrize("scales", [False, True])
def test_lse_is_a_natural_logarithm(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_flash, "SCALES_LSE", scales)
    q = torch.zeros(1, 1, 1, 8)
    natural = torch.tensor([[[1.5, -math.inf]]])
    told = natural * math.log(2) if scales else natural
    _, lse = FLEX_FLASH.finished(Call(q, q, q, Recipe(), Needs(lse=True)), q, told)
    torch.testing.assert_close(lse, natural)


def test_the_installed_torch_is_asked_which_it_is() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    assert version >= (2, 13) or (version <= (2, 11)) == flex_flash.SCALES_LSE
    assert version < (2, 13) or not flex_flash.SCALES_LSE


def test_packages() -> None:
    assert packages.installed("torch.nn")
    assert not packages.installed("no_such_package.inside")
    assert not packages.installed("no_such_package")
    assert backends.get("flash4").name == "flash4"
