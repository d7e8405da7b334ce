"""The explorer of a recipe: its canvas shows what the recipe computes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import registry
from attn_mods.masks import SlidingWindow
from docs.generator.axes import Explorer, explorer
from docs.generator.examples import catalogue
from tests.browser.conftest import Visit
from tests.docs.test_frames import dense_of

NAMES = [entry.name for entry in catalogue()]
OPACITIES = """canvas => {
    const zoom = Number(canvas.dataset.zoom), context = canvas.getContext("2d");
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data, rows = [];
    for (let y = zoom >> 1; y < canvas.height; y += zoom) {
        const row = [];
        for (let x = zoom >> 1; x < canvas.width; x += zoom) row.push(data[4 * (y * canvas.width + x) + 3]);
        rows.push(row);
    }
    return rows;
}"""


def opacities(page: Any) -> Tensor:
    """How opaque each pair is on the canvas, from 0 to 1."""
    return torch.tensor(page.eval_on_selector(".am-canvas", OPACITIES)) / 255


def expected(shown: Explorer, setting: dict[str, Any], pair: tuple[int, int]) -> Tensor:
    """The recipe's dense form, from 0 to 1."""
    fields = {name: value for name, value in setting.items() if name not in ("case", "sample", "head")}
    part = shown.entry.cases[setting.get("case", shown.case)].make(*pair, "cpu")
    return drawn_of(dataclasses.replace(part, **fields) if fields else part, setting, pair, shown.shown_on)


def drawn_of(part: Any, setting: dict[str, Any], pair: tuple[int, int], shown_on: str) -> Tensor:
    """The dense form of a mask or score at the sample and head of a setting, from 0 to 1."""
    dense = dense_of(part, setting, *pair, shown_on).double()
    if isinstance(part, am.Mask):
        return dense.float()
    low, high = dense.min(), dense.max()
    return (dense - low) / (high - low) if high > low else torch.ones(pair)


def choose(page: Any, name: str, position: int) -> None:
    """Set a control to the value at a position."""
    control = page.locator(f'.am-controls [name="{name}"]')
    if control.evaluate("control => control.tagName") == "SELECT":
        control.select_option(str(position))
    else:
        control.fill(str(position))


@pytest.mark.parametrize("name", NAMES)
def test_the_canvas_shows_what_the_recipe_computes(visit: Visit, name: str) -> None:
    shown = explorer(registry.info(name))
    page = visit.open(f"gallery/{name}/", ".am-explorer[data-shown]")
    compared = 0
    for number, pair in enumerate(shown.lengths):
        if len(shown.lengths) > 1:
            choose(page, "length", number)
        for end in ("start", "last"):
            setting = {}
            for axis in shown.axes:
                position = axis.start if end == "start" else len(axis.values) - 1
                choose(page, axis.name, position)
                setting[axis.name] = axis.values[position]
            if shown.matrix(setting, *pair) is None:
                assert "refuses these values together" in page.inner_text(".am-legend")
                continue
            drawn, dense = opacities(page), expected(shown, setting, pair)
            assert drawn.shape == dense.shape
            assert (drawn - dense).abs().max() <= (0.0 if shown.entry.kind == "mask" else 0.04), (setting, pair)
            compared += 1
    assert compared >= len(shown.lengths)


def test_blocks_are_counted_and_drawn(visit: Visit) -> None:
    page = visit.open("gallery/causal/", ".am-explorer[data-shown]")
    choose(page, "length", 2)
    page.click('.am-toggle button:has-text("blocks")')
    assert "28 empty" in page.inner_text(".am-legend") and "8 mixed" in page.inner_text(".am-legend")
    drawn = opacities(page)
    assert float(drawn[0, 63]) == 0 and float(drawn[63, 0]) == 1 and 0.3 < float(drawn[0, 7]) < 0.5


def test_a_row_is_told_in_words_by_pointer_and_by_keys(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/", ".am-explorer[data-shown]")
    page.focus(".am-canvas")
    page.keyboard.press("Home")
    assert page.inner_text(".am-words") == "row 0 sees key 0"
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert page.inner_text(".am-words") == "row 5 sees keys 3-5"
    zoom = int(page.get_attribute(".am-canvas", "data-zoom"))
    page.hover(".am-canvas", position={"x": 3, "y": 7.5 * zoom})
    assert page.inner_text(".am-words") == "row 7 sees keys 5-7"
    page.hover(".am-canvas", position={"x": 3, "y": 1.5 * zoom})
    assert page.inner_text(".am-words") == "row 1 sees keys 0-1"


@pytest.mark.parametrize("name", ["alibi", "t5_bucket", "relative_bias_table"])
def test_the_highest_and_lowest_of_a_row_go_by_the_values(visit: Visit, name: str) -> None:
    shown = explorer(registry.info(name))
    page = visit.open(f"gallery/{name}/?length=64", ".am-explorer[data-shown]")
    setting = {axis.name: axis.values[axis.start] for axis in shown.axes}
    page.focus(".am-canvas")
    for number, row in enumerate(shown.matrix(setting, 64, 64)):
        page.keyboard.press("ArrowDown")
        words = page.inner_text(".am-words")
        assert words.startswith(f"row {number}: highest at key"), words
        first, last = (re.findall(r"\d+", part)[0] for part in words.partition(": ")[2].split(", lowest "))
        assert (int(first), int(last)) == (int(row.argmax()), int(row.argmin())), words


def test_the_picture_follows_the_size_of_the_window(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/", ".am-explorer[data-shown]")
    for width, height, zoom in ((360, 740, "10"), (1280, 900, "12"), (320, 568, "8"), (568, 320, "12")):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_selector(f'.am-canvas[data-zoom="{zoom}"]')
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert torch.equal(opacities(page).bool(), SlidingWindow(window=3).dense(32, 32))


def test_a_chosen_zoom_stays_as_it_is(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/", ".am-explorer[data-shown]")
    page.select_option('.am-controls [name="zoom"]', label="20")
    page.set_viewport_size({"width": 360, "height": 740})
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.get_attribute(".am-canvas", "data-zoom") == "20"
    page.select_option('.am-controls [name="zoom"]', label="automatic")
    assert page.get_attribute(".am-canvas", "data-zoom") == "10"


def test_the_copy_button_copies_the_program(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/", ".md-clipboard, .md-code__button")
    block = page.locator(".tabbed-block").first
    block.hover()
    block.locator("button[data-md-type=copy], button.md-clipboard").first.click()
    page.wait_for_timeout(100)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == block.locator("code").inner_text().strip()
    assert "masks.SlidingWindow(window=3)" in copied


def test_the_colours_follow_the_palette(visit: Visit) -> None:
    page = visit.open("gallery/causal/", ".am-explorer[data-shown]")
    pixel = "canvas => [...canvas.getContext('2d').getImageData(2, 2, 1, 1).data].join()"
    light = page.eval_on_selector(".am-canvas", pixel)
    page.locator("label[for=__palette_1]:visible, label[for=__palette_0]:visible").first.click()
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    page.wait_for_function(f"({pixel})(document.querySelector('.am-canvas')) !== '{light}'")
