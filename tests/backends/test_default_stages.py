"""Stages of the one choice of tiles: what a rule reads at pairs, what fits, and what the compiler is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx

from attn_mods.backends import default_stages
from attn_mods.backends.default_stages import bytes_read_at_pairs, mend_default_stages, stages_that_fit

HALF = torch.bfloat16
H100 = 232_448
TABLE, WIDE, NEAREST = torch.rand(400), torch.rand(4, 400, dtype=torch.float64), torch.randint(0, 9, (200,))

SCORES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "nothing": (lambda score, b, h, i, j: score * 2 + (j - i), 0),
    "at the key": (lambda score, b, h, i, j: score + TABLE[j], 0),
    "at the query and at the key": (lambda score, b, h, i, j: score + TABLE[i] * TABLE[j], 0),
    "at what the key reads": (lambda score, b, h, i, j: score + TABLE[NEAREST[j]], 0),
    "by distance": (lambda score, b, h, i, j: score + TABLE[(j - i).abs()], 4),
    "by distance of what both read": (lambda score, b, h, i, j: score + TABLE[(NEAREST[j] - NEAREST[i]).abs()], 4),
    "two": (lambda score, b, h, i, j: score + TABLE[(j - i).abs()] + WIDE[h, i + j], 12),
}


def flex_attention_node(score: Callable[..., Tensor], mask: Callable[..., Tensor], **options: int) -> Any:
    """What the compiler has of a flex_attention: a stand-in with the graphs of both rules."""
    positions = [torch.tensor(3) for _ in range(4)]
    with TransformGetItemToIndex():
        graphs = {"score": make_fx(score)(torch.tensor(0.5), *positions), "mask": make_fx(mask)(*positions)}
    rules = SimpleNamespace(target="score"), SimpleNamespace(target="mask")
    arguments = (None, None, None, rules[0], (None, rules[1]), 0.1, options, (), ())
    target = torch.ops.higher_order.flex_attention
    return SimpleNamespace(
        args=arguments, graph=SimpleNamespace(owning_module=SimpleNamespace(**graphs)), target=target
    )


def everything(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j >= 0


@pytest.mark.parametrize("name", SCORES)
def test_what_a_score_reads_at_pairs(name: str) -> None:
    score, expected = SCORES[name]
    assert bytes_read_at_pairs(flex_attention_node(score, everything)) == expected


def test_what_a_mask_reads_counts_too() -> None:
    score, read = SCORES["by distance"]
    node = flex_attention_node(score, lambda b, h, i, j: TABLE[i + j] > 0.5)
    assert bytes_read_at_pairs(node) == read + TABLE.dtype.itemsize


def config(rows: int, columns: int, stages: int) -> Any:
    return importlib.import_module("torch._inductor.template_heuristics.triton").FlexConfig(rows, columns, stages, 4)


@pytest.mark.parametrize(
    ("rows", "columns", "head_dim", "read", "stages"),
    [
        (128, 128, 64, 0, 3),
        (128, 128, 64, 4, 2),  # seen on a card: three stages need 245,760 bytes
        (128, 64, 128, 4, 3),  # seen on a card: they fit
        (128, 64, 128, 8, 2),
        (128, 128, 64, 16, 1),
        (128, 128, 64, 64, 1),
    ],
)
def test_stages_that_fit(rows: int, columns: int, head_dim: int, read: int, stages: int) -> None:
    assert stages_that_fit(config(rows, columns, 3), {}, head_dim, HALF, read, H100) == config(rows, columns, stages)


def test_a_callers_tiles_are_what_counts() -> None:
    for options in ({"BLOCK_M": 64, "BLOCK_N": 64}, {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "BLOCK_M": 512}):
        assert stages_that_fit(config(128, 128, 3), options, 64, HALF, 4, H100).num_stages == 3


@pytest.mark.parametrize(
    ("configs", "device_type", "room", "stages"),
    [(1, "cuda", H100, [2]), (2, "cuda", H100, [3, 3]), (1, "xpu", H100, [3]), (1, "cuda", None, [3])],
    ids=["the only one", "tuned", "no card", "a card that does not say"],
)
def test_the_compiler_is_told(
    configs: int, device_type: str, room: int | None, stages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mend_default_stages()
    choices = importlib.import_module("torch._inductor.choices").InductorChoices
    heuristics = SimpleNamespace(get_flex_attn_fwd_configs=lambda head_dim, dtype: [config(128, 128, 3)] * configs)
    monkeypatch.setattr(choices, "get_config_heuristics", lambda self, device_type: heuristics)
    monkeypatch.setattr(default_stages, "shared_memory", lambda: room)
    node = flex_attention_node(SCORES["by distance"][0], everything)
    with importlib.import_module("torch._inductor.virtualized").V.set_current_node(node):
        found = choices().get_flex_attention_fwd_configs(64, HALF, device_type)
    assert [each.num_stages for each in found] == stages
