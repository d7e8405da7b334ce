"""Stages of the one choice of tiles: what a rule reads at pairs, what fits, and what the compiler is told."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx

from attn_mods.backends import default_stages
from attn_mods.backends.default_stages import KERNELS, Kernel, bytes_read_at_pairs, mend_default_stages, stages_that_fit

HALF = torch.bfloat16
FORWARD, BACKWARD = KERNELS
H200 = 232_448
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


def node_of(kernel: Kernel, score: Callable[..., Tensor], mask: Callable[..., Tensor], **options: int) -> Any:
    """What the compiler has of a flex_attention: a stand-in with the graphs of both rules."""
    positions = [torch.tensor(3) for _ in range(4)]
    with TransformGetItemToIndex():
        graphs = {"score": make_fx(score)(torch.tensor(0.5), *positions), "mask": make_fx(mask)(*positions)}
    arguments: list[Any] = [None] * 14
    arguments[kernel.score] = SimpleNamespace(target="score")
    arguments[kernel.lists] = (None, SimpleNamespace(target="mask"))
    arguments[kernel.options] = options
    graph = SimpleNamespace(owning_module=SimpleNamespace(**graphs))
    return SimpleNamespace(args=arguments, graph=graph, target=kernel.operator)


def everything(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j >= 0


@pytest.mark.parametrize("name", SCORES)
def test_what_a_score_reads_at_pairs(name: str) -> None:
    score, expected = SCORES[name]
    for kernel in KERNELS:
        assert bytes_read_at_pairs(node_of(kernel, score, everything), kernel) == expected


def test_what_a_mask_reads_counts_too() -> None:
    score, read = SCORES["by distance"]
    node = node_of(FORWARD, score, lambda b, h, i, j: TABLE[i + j] > 0.5)
    assert bytes_read_at_pairs(node, FORWARD) == read + TABLE.dtype.itemsize


def config(kernel: Kernel, rows: int, columns: int, stages: int) -> Any:
    triton = importlib.import_module("torch._inductor.template_heuristics.triton")
    if kernel is FORWARD:
        return triton.FlexConfig(rows, columns, stages, 4)
    return triton.FlexBwDConfig(rows, columns, columns, rows, stages, 8)


# Those with a note were seen on an H200: what three stages need there, or that they fit.
@pytest.mark.parametrize(
    ("kernel", "rows", "columns", "head_dim", "read", "stages"),
    [
        (FORWARD, 128, 128, 64, 0, 3),
        (FORWARD, 128, 128, 64, 4, 2),  # 245,760 bytes
        (FORWARD, 128, 64, 128, 4, 3),  # they fit
        (FORWARD, 128, 64, 128, 8, 2),
        (FORWARD, 128, 128, 64, 16, 1),
        (FORWARD, 128, 128, 64, 64, 1),
        (BACKWARD, 64, 128, 128, 4, 3),  # they fit
        (BACKWARD, 64, 128, 128, 8, 2),  # 295,936 bytes
        (BACKWARD, 64, 128, 64, 8, 3),  # they fit
        (BACKWARD, 64, 128, 128, 64, 1),
    ],
)
def test_stages_that_fit(kernel: Kernel, rows: int, columns: int, head_dim: int, read: int, stages: int) -> None:
    found = stages_that_fit(kernel, config(kernel, rows, columns, 3), {}, head_dim * HALF.itemsize, read, H200)
    assert found == config(kernel, rows, columns, stages)


def test_what_two_kernels_were_seen_to_take() -> None:
    assert FORWARD.shared({"BLOCK_M": 128, "BLOCK_N": 128}.__getitem__, 128, 4, 3) == 245_760
    tiles = {"BLOCK_M1": 64, "BLOCK_N1": 128, "BLOCK_M2": 128, "BLOCK_N2": 64}
    assert BACKWARD.shared(tiles.__getitem__, 256, 8, 3) == 295_936


def test_a_callers_tiles_are_what_counts() -> None:
    for options in ({"BLOCK_M": 64, "BLOCK_N": 64}, {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "BLOCK_M": 512}):
        assert stages_that_fit(FORWARD, config(FORWARD, 128, 128, 3), options, 128, 4, H200).num_stages == 3


@pytest.mark.parametrize("kernel", KERNELS, ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("configs", "device_type", "room", "stages"),
    [(1, "cuda", H200, [2]), (2, "cuda", H200, [3, 3]), (1, "xpu", H200, [3]), (1, "cuda", None, [3])],
    ids=["the only one", "tuned", "no card", "a card that does not say"],
)
def test_the_compiler_is_told(
    kernel: Kernel,
    configs: int,
    device_type: str,
    room: int | None,
    stages: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mend_default_stages()
    choices = importlib.import_module("torch._inductor.choices").InductorChoices
    found = [config(kernel, 128, 128, 3)] * configs
    handed = []

    def chosen(*asked: Any) -> list[Any]:
        handed.append(asked)
        return found

    heuristics = SimpleNamespace(get_flex_attn_fwd_configs=chosen, get_flex_attn_bwd_configs=chosen)
    monkeypatch.setattr(choices, "get_config_heuristics", lambda self, device_type: heuristics)
    monkeypatch.setattr(default_stages, "shared_memory", lambda: room)
    node = node_of(kernel, SCORES["by distance"][0], everything)
    choose = getattr(choices(), kernel.choice)
    values = {"head_dim": 64, "seq_len": 512, "dtype": HALF, "device_type": device_type}
    asked = {name: values[name] for name in inspect.signature(choose).parameters}
    inspect.unwrap(choose)(choices(), **asked)
    with importlib.import_module("torch._inductor.virtualized").V.set_current_node(node):
        for told in (choose(*asked.values()), choose(**asked)):
            assert [each.num_stages for each in told] == stages
    assert handed == handed[:1] * 3
