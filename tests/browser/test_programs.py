"""Programs beside a picture: they make what is drawn, at every length, and are copied as they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attn_mods import registry
from docs.generator.axes import Explorer, explorer
from docs.generator.examples import catalogue
from tests.browser.conftest import Visit
from tests.browser.test_explorer import choose, drawn_of, opacities
from tests.docs.test_frames import made

EXPLORERS = {entry.name: explorer(entry) for entry in catalogue()}
OF_CASES = [name for name, shown in EXPLORERS.items() if any(axis.name == "case" for axis in shown.axes)]
COPY = '.am-code button[title="Copy to clipboard"]'


def shown_program(page: Any) -> str:
    """The program on the page."""
    text: str = page.inner_text(".am-code code")
    return text


COPIED = """async () => {
    for (let tries = 0; tries < 100 && !(await navigator.clipboard.readText()); tries++)
        await new Promise((done) => setTimeout(done, 20));
    return navigator.clipboard.readText();
}"""


def copied(page: Any, press: Callable[[], None]) -> str:
    """What a button that is pressed puts onto the clipboard, which was empty before."""
    page.evaluate("navigator.clipboard.writeText('')")
    press()
    text: str = page.evaluate(COPIED)
    return text


def chosen(page: Any, shown: Explorer) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    """Every length and setting, each while the page shows it."""
    for number, pair in enumerate(shown.lengths):
        choose(page, "length", number)
        for setting in shown.settings():
            for axis in shown.axes:
                choose(page, axis.name, axis.values.index(setting[axis.name]))
            yield setting, pair


@pytest.mark.parametrize("name", OF_CASES)
def test_the_program_makes_what_is_drawn(
    visit: Visit, name: str, record_property: Callable[[str, object], None]
) -> None:
    shown = EXPLORERS[name]
    page = visit.open(f"gallery/{name}/", ".am-explorer[data-shown]")
    compared = 0
    for setting, pair in chosen(page, shown):
        part = made(shown_program(page), f"on the page of {name}")
        if shown.matrix(setting, *pair) is not None:
            drawn, dense = opacities(page), drawn_of(part, setting, pair, shown.shown_on)
            assert drawn.shape == dense.shape
            assert (drawn - dense).abs().max() <= (0.0 if shown.entry.kind == "mask" else 0.04), (setting, pair)
            compared += 1
    assert compared >= len(shown.lengths)
    record_property("programs of explorers held against the canvas", compared)


def test_no_program_is_shown_where_the_sliders_say_it_all(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/", ".am-explorer[data-shown]")
    assert page.is_hidden(".am-code") and page.locator(".am-code").count() == 1


@pytest.mark.parametrize("path", ["gallery/document/", "gallery/pair_bias/", "gallery/compose/"])
def test_the_copy_button_is_the_themes_own(visit: Visit, path: str) -> None:
    page = visit.open(path, "[data-shown]")
    button = page.locator(".am-code").get_by_role("button", name="Copy to clipboard", exact=True)
    theirs = page.locator(".tabbed-block .md-code__button").first if "compose" not in path else None
    if theirs is not None:
        looks = "button => [button.className, getComputedStyle(button, '::after').maskImage, button.title].join()"
        assert button.evaluate(looks) == theirs.evaluate(looks)
    assert copied(page, button.click) == shown_program(page)
    page.wait_for_selector(".md-dialog--active:has-text('Copied to clipboard')")


def test_what_a_slider_changed_is_copied_by_keyboard(visit: Visit) -> None:
    page = visit.open("gallery/document/", ".am-explorer[data-shown]")
    before = shown_program(page)
    choose(page, "length", 2)
    assert shown_program(page) != before and "64]" in shown_program(page)
    page.focus(".am-controls >> select >> nth=-1")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.matches('{COPY}')"):
            break
    assert copied(page, lambda: page.keyboard.press("Enter")) == shown_program(page)


def test_what_was_chosen_in_composing_is_copied(visit: Visit) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    page.locator('.am-term >> nth=0 >> [name="mask"]').select_option(label=registry.info("causal").title)
    assert copied(page, lambda: page.click(COPY)) == shown_program(page)
    assert "a = masks.Causal()" in shown_program(page)


def test_copying_works_after_instant_navigation(visit: Visit) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    page.evaluate("window.sameDocument = true")
    for name in ("document", "cumsum_ar"):
        page.evaluate(f"document.querySelector('.md-nav a[href$=\"{name}/\"]').click()")
        page.wait_for_url(f"**/gallery/{name}/")
        page.wait_for_selector(".am-explorer[data-shown] .am-code:not([hidden])")
        assert copied(page, lambda: page.click(COPY)) == shown_program(page)
    assert "masks.CumsumAr(" in shown_program(page) and page.evaluate("window.sameDocument") is True
