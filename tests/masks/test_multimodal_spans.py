"""Gemma 3's documented example, the three ways to combine images with a window, and errors."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import MultimodalSpans

ONE_IMAGE = torch.tensor([-1, -1, 0, 0, 0, 0, -1, -1])


def rows(mask: MultimodalSpans) -> list[str]:
    length = mask.span.shape[-1]
    return ["".join("x" if visible else "." for visible in row) for row in mask.dense(length, length).tolist()]


def test_an_image_between_text() -> None:
    assert rows(MultimodalSpans(ONE_IMAGE)) == [
        "x.......",
        "xx......",
        "xxxxxx..",
        "xxxxxx..",
        "xxxxxx..",
        "xxxxxx..",
        "xxxxxxx.",
        "xxxxxxxx",
    ]


@pytest.mark.parametrize(
    ("window_limits", "expected"),
    [
        ("both", ["x.......", "xx......", ".xxx....", "..xxx...", "...xxx..", "....xx..", ".....xx.", "......xx"]),
        ("past", ["x.......", "xx......", ".xxxxx..", "..xxxx..", "...xxx..", "....xx..", ".....xx.", "......xx"]),
        ("text", ["x.......", "xx......", ".xxxxx..", "..xxxx..", "..xxxx..", "..xxxx..", ".....xx.", "......xx"]),
    ],
)
def test_the_three_published_windows_of_two(window_limits: str, expected: list[str]) -> None:
    assert rows(MultimodalSpans(ONE_IMAGE, window=2, window_limits=window_limits)) == expected


def test_neighbouring_images_do_not_see_each_other_ahead() -> None:
    assert rows(MultimodalSpans(torch.tensor([0, 0, 1, 1]))) == ["xx..", "xx..", "xxxx", "xxxx"]
    assert rows(MultimodalSpans(torch.tensor([0, 0, 0, 0]))) == ["xxxx"] * 4


def test_a_span_may_be_interrupted_and_numbered_in_any_order() -> None:
    mask = MultimodalSpans(torch.tensor([7, -1, 7, 2, -1, 2]))
    assert rows(mask) == ["x.x...", "xx....", "xxx...", "xxxx.x", "xxxxx.", "xxxxxx"]
    rule, zero = mask.mask_mod(), torch.tensor(0)
    by_rule = [[bool(rule(zero, zero, torch.tensor(i), torch.tensor(j))) for j in range(6)] for i in range(6)]
    assert by_rule == mask.dense(6, 6).tolist()


def test_one_row_serves_every_sample() -> None:
    mask = MultimodalSpans(torch.tensor([[-1, 0, 0]]))
    assert mask.batch_and_heads() == (1, 1)
    assert bool(mask.mask_mod()(torch.tensor(3), torch.tensor(0), torch.tensor(1), torch.tensor(2)))


@pytest.mark.parametrize(
    ("span", "arguments", "error", "text"),
    [
        (torch.tensor([-2, 0]), {}, ValueError, "multimodal_spans: span must be >= -1"),
        (torch.tensor([2**29]), {}, ValueError, "multimodal_spans: span must be below 2"),
        (torch.tensor([0.5]), {}, TypeError, "multimodal_spans: span must be an integer tensor"),
        (ONE_IMAGE, {"window": 0}, ValueError, "multimodal_spans: window must be >= 1, got 0"),
        (ONE_IMAGE, {"window_limits": "images"}, ValueError, "window_limits must say what the window limits"),
    ],
)
def test_errors(span: torch.Tensor, arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MultimodalSpans(span, **arguments)
