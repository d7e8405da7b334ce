"""Neighborhood windows written out by hand, NATTEN's definition token by token, exact tile states, and errors."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods.evaluation import evaluate_everywhere
from attn_mods.masks import Neighborhood, _canvas
from attn_mods.tiles import UNKNOWN, Grid
from tests.block_mask_equality import assert_sound


def by_rule(mask: Neighborhood, tokens: int) -> Tensor:
    one, positions = torch.arange(1), torch.arange(tokens)
    return evaluate_everywhere(mask.mask_mod(), one, one, positions, positions)[0, 0]


@pytest.mark.parametrize(
    ("size", "arguments", "windows"),
    [
        pytest.param(6, {"kernel": (3,)}, ["012", "012", "123", "234", "345", "345"], id="odd"),
        pytest.param(6, {"kernel": (4,)}, ["0123", "0123", "0123", "1234", "2345", "2345"], id="even"),
        pytest.param(5, {"kernel": (1,)}, ["0", "1", "2", "3", "4"], id="one"),
        pytest.param(5, {"kernel": (5,)}, ["01234"] * 5, id="whole axis"),
        pytest.param(
            7, {"kernel": (2,), "dilation": (2,)}, ["02", "13", "02", "13", "24", "35", "46"], id="clamped in a residue"
        ),
        pytest.param(
            8, {"kernel": (4,), "stride": (2,)}, ["0123"] * 2 + ["1234"] * 2 + ["3456"] * 2 + ["4567"] * 2, id="stride"
        ),
        pytest.param(5, {"kernel": (3,), "causal": (True,)}, ["0", "01", "012", "123", "234"], id="causal"),
        pytest.param(
            6,
            {"kernel": (3,), "causal": (True,), "stride": (2,)},
            ["0", "01", "12", "123", "34", "345"],
            id="causal stride",
        ),
        pytest.param(
            7, {"kernel": (3,), "stride": (3,)}, ["012"] * 3 + ["345"] * 3 + ["456"], id="ragged stride group"
        ),
    ],
)
def test_windows_of_one_axis(size: int, arguments: dict[str, Any], windows: list[str]) -> None:
    mask = Neighborhood((size,), **arguments)
    expected = [[str(j) in window for j in range(size)] for window in windows]
    assert mask.dense(size, size).tolist() == expected
    assert by_rule(mask, size).tolist() == expected


def sees(q: int, kv: int, size: int, kernel: int, dilation: int, stride: int, causal: bool) -> bool:
    """One axis as NATTEN's documentation says it."""
    if q % dilation != kv % dilation:
        return False
    length = len(range(q % dilation, size, dilation))
    q, kv = q // dilation, kv // dilation
    group = q // stride
    if causal:
        leader = min((group + 1) * stride - 1, length - 1)
        return kv <= q and leader - kv < kernel
    leader = min(group * stride + stride // 2, length - 1)
    before, after = kernel // 2, kernel - 1 - kernel // 2
    centre = max(before, min(leader, length - 1 - after))
    return centre - before <= kv <= centre + after


@pytest.mark.parametrize(
    ("canvas", "arguments"),
    [
        ((4, 7), {"kernel": (3, 5)}),
        ((7, 4), {"kernel": (2, 4)}),
        ((5, 9), {"kernel": (2, 3), "dilation": (2, 3)}),
        ((6, 8), {"kernel": (3, 4), "causal": (True, False), "stride": (2, 3)}),
        ((3, 4, 5), {"kernel": (2, 3, 2), "causal": (True, False, False), "dilation": (1, 1, 2)}),
    ],
)
def test_the_definition_token_by_token(canvas: tuple[int, ...], arguments: dict[str, Any]) -> None:
    mask = Neighborhood(canvas, **arguments)
    axes = list(zip(mask.canvas, mask.kernel, mask.dilation, mask.stride, mask.causal, strict=True))
    tokens = list(itertools.product(*(range(size) for size in canvas)))
    expected = [
        [all(sees(a, b, *axis) for a, b, axis in zip(q, kv, axes, strict=True)) for kv in tokens] for q in tokens
    ]
    assert mask.dense(len(tokens), len(tokens)).tolist() == expected
    assert by_rule(mask, len(tokens)).tolist() == expected


def test_height_and_width_are_not_the_same() -> None:
    tall, wide = Neighborhood((6, 2), (3, 1)).dense(12, 12), Neighborhood((2, 6), (1, 3)).dense(12, 12)
    assert tall[0].nonzero().flatten().tolist() == [0, 2, 4]
    assert wide[0].nonzero().flatten().tolist() == [0, 1, 2]


def random_mask(generator: random.Random) -> Neighborhood:
    canvas = tuple(generator.randint(1, 9) for _ in range(generator.randint(1, 3)))
    dilation = tuple(generator.randint(1, min(2, size)) for size in canvas)
    kernel = tuple(generator.randint(1, size // step) for size, step in zip(canvas, dilation, strict=True))
    stride = tuple(generator.randint(1, k) for k in kernel)
    return Neighborhood(canvas, kernel, dilation, tuple(generator.random() < 0.3 for _ in canvas), stride)


def test_tile_states_are_exact_on_random_canvases() -> None:
    generator = random.Random(0)
    executed = 0
    for _ in range(150):
        mask = random_mask(generator)
        tokens = torch.Size(mask.canvas).numel()
        q_offset, kv_offset = generator.randrange(tokens), generator.randrange(tokens)
        q_len, kv_len = generator.randint(1, tokens - q_offset), generator.randint(1, tokens - kv_offset)
        block_size = (generator.randint(1, 40), generator.randint(1, 40))
        grid = Grid(q_len, kv_len, block_size, q_offset=q_offset, kv_offset=kv_offset)
        states = mask.tile_states(grid)
        dense = mask.dense(tokens, tokens)[q_offset : q_offset + q_len, kv_offset : kv_offset + kv_len]
        assert_sound(states, dense[None, None], grid)
        assert not bool((states.codes == UNKNOWN).any())
        executed += 1
    assert executed == 150


def test_a_longer_axis_is_left_to_the_calculus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_canvas, "LONGEST_AXIS", 8)
    mask = Neighborhood((4, 9), (3, 3))
    grid = Grid(36, 36, (16, 16))
    assert_sound(mask.tile_states(grid), mask.dense(36, 36)[None, None], grid)


@pytest.mark.parametrize(
    ("canvas", "arguments", "error", "text"),
    [
        ((4, 4), {"kernel": (3,)}, ValueError, "neighborhood: kernel must have 2 axes as the canvas has"),
        ((4, 4), {"kernel": (5, 3)}, ValueError, r"kernel \* dilation must fit the canvas on every axis"),
        ((4, 4), {"kernel": (2, 3), "dilation": (2, 2)}, ValueError, r"kernel \* dilation must fit"),
        ((4, 4), {"kernel": (3, 3), "stride": (1, 4)}, ValueError, "stride must be <= kernel on every axis"),
        ((4, 4), {"kernel": (3, 3), "dilation": ()}, ValueError, "dilation must have 2 axes"),
        ((4, 4), {"kernel": (0, 3)}, ValueError, "kernel must be >= 1, got 0"),
        ((4, 4), {"kernel": (3, 3), "causal": (True,)}, ValueError, "causal must have 2 axes"),
        ((4, 4), {"kernel": (3, 3), "causal": True}, TypeError, "causal must be a tuple of bools"),
        ((4, 4), {"kernel": 3}, TypeError, "kernel must be a tuple of ints, one an axis"),
        ((2, 2, 2, 2), {"kernel": (1, 1, 1, 1)}, ValueError, "canvas must have one to three axes"),
    ],
)
def test_errors(canvas: tuple[int, ...], arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Neighborhood(canvas, **arguments)


def test_keys_that_are_not_the_canvas_are_refused() -> None:
    with pytest.raises(ValueError, match="describe 16 tokens, so the keys must end at 16, got 20"):
        Neighborhood((4, 4), (3, 3)).place(20, 20)
