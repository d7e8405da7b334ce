"""What is wider than a telephone scrolls in its own box, and shows at which side it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import SITE_URL, Visit, settle
from tests.browser.test_every_page import TELEPHONE, WIDER_THAN_THE_WINDOW

WIDE = {
    "table": ("performance/sdpa_and_flash/", ".md-typeset__scrollwrap", 360),
    "chart": ("gallery/sliding_window/", ".am-figure", 360),
    "states of blocks": (
        "gallery/compose/?terms=sliding_window.and.document.or.prefix_lm.minus.not-area",
        ".am-scroll:has(table)",
        280,
    ),
}
"""A page, a box on it, and how many pixels wide a window is that is too narrow for what is in it."""

HEIGHT = 740
HIDDEN = "box => box.scrollWidth - box.clientWidth"
EDGE = 16
"""How many pixels wide the shade is."""


def wide_box(page: Any, selector: str) -> Any:
    """The first box on a page that holds more than it shows, in the middle of the window."""
    boxes = page.locator(selector)
    found = next(box for box in boxes.all() if box.is_visible() and box.evaluate(HIDDEN) > 40)
    found.evaluate("box => { box.id = 'wide'; box.scrollIntoView({block: 'center'}); }")
    return page.locator("#wide")


def is_shaded(page: Any, box: Any, side: str) -> bool:
    """Whether a side of a box looks other than it does without its cue."""
    place = box.bounding_box()
    left = place["x"] if side == "left" else place["x"] + place["width"] - EDGE
    top, bottom = max(place["y"], 60), min(place["y"] + place["height"], HEIGHT)
    clip = {"x": left, "y": top, "width": EDGE, "height": bottom - top}
    with_cue = page.screenshot(clip=clip)
    box.evaluate("box => { box.style.background = 'none'; }")
    without = page.screenshot(clip=clip)
    box.evaluate("box => { box.style.background = ''; }")
    return bool(with_cue != without)


def scroll(box: Any, to: str) -> None:
    """Scroll a box to an end or between them."""
    share = {"start": 0, "middle": 0.5, "end": 1}[to]
    box.evaluate(f"box => {{ box.scrollLeft = {share} * (box.scrollWidth - box.clientWidth); }}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("path", "selector", "width"), list(WIDE.values()), ids=list(WIDE))
def test_a_wide_box_shows_where_it_goes_on(visit: Visit, path: str, selector: str, width: int, scheme: str) -> None:
    visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    visit.page.set_viewport_size({"width": width, "height": HEIGHT})
    page = visit.open(path, selector)
    settle(page)
    assert page.evaluate(WIDER_THAN_THE_WINDOW) <= 0
    box = wide_box(page, selector)
    for to, sides in {"start": {"right"}, "middle": {"left", "right"}, "end": {"left"}}.items():
        scroll(box, to)
        assert {side for side in ("left", "right") if is_shaded(page, box, side)} == sides, to


def test_a_box_that_holds_no_more_than_it_shows_has_no_shade(visit: Visit) -> None:
    visit.page.emulate_media(reduced_motion="reduce")
    visit.page.set_viewport_size({"width": 1600, "height": HEIGHT})
    page = visit.open("performance/sdpa_and_flash/", ".md-typeset__scrollwrap")
    settle(page)
    box = next(box for box in page.locator(".md-typeset__scrollwrap").all() if box.evaluate(HIDDEN) == 0)
    box.evaluate("box => { box.scrollIntoView({block: 'center'}); }")
    assert not is_shaded(page, box, "left") and not is_shaded(page, box, "right")


@pytest.fixture
def unscripted(chromium: Any) -> Iterator[Any]:
    """A page of a telephone that runs no scripts, where the theme puts no box around a table."""
    context = chromium.new_context(java_script_enabled=False, viewport=TELEPHONE)
    yield context.new_page()
    context.close()


def test_a_wide_table_shows_it_without_scripts(unscripted: Any) -> None:
    unscripted.goto(f"{SITE_URL}performance/sdpa_and_flash/")
    assert unscripted.locator(".md-typeset__scrollwrap").count() == 0
    box = wide_box(unscripted, "article table")
    assert is_shaded(unscripted, box, "right")
