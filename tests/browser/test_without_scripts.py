"""Without JavaScript a page speaks of nothing that only scripts make, and says what there is instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attn_mods import registry
from docs.generator.compose import ABOUT_FRAMES, ABOUT_TABLES
from docs.generator.examples import catalogue, first
from docs.generator.pictures import TOKENS
from docs.generator.recipe_page import TO_READ
from tests.browser.conftest import SITE_URL, Visit

NAMES = [entry.name for entry in catalogue()]
MADE_BY_SCRIPTS = {"gallery/compose/": [ABOUT_FRAMES, ABOUT_TABLES], "gallery/sliding_window/": [TO_READ]}
"""By page what is said there of what only scripts make."""


@pytest.fixture(scope="module")
def unscripted(chromium: Any) -> Iterator[Any]:
    """A page of a browser that runs no scripts."""
    context = chromium.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def article(page: Any) -> str:
    """What a reader sees of a page's own, a space between words."""
    return " ".join(page.inner_text("article").split())


@pytest.mark.parametrize("path", MADE_BY_SCRIPTS)
def test_what_scripts_make_is_spoken_of_with_them_alone(visit: Visit, unscripted: Any, path: str) -> None:
    unscripted.goto(SITE_URL + path)
    scripted = visit.open(path, "[data-shown]")
    for sentence in MADE_BY_SCRIPTS[path]:
        assert sentence in article(scripted)
        assert sentence not in article(unscripted)
    assert "JavaScript" in article(unscripted) and "JavaScript" not in article(scripted)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_picture_and_says_of_which_lengths(unscripted: Any, name: str) -> None:
    unscripted.goto(f"{SITE_URL}gallery/{name}/")
    example = first(registry.info(name), TOKENS)
    assert f"This is one picture, of {example.q_len} queries x {example.kv_len} keys." in article(unscripted)
    assert "Point at a row" not in article(unscripted)
    picture = unscripted.locator(".am-explorer svg.am-picture")
    assert picture.is_visible() and f"{example.q_len} queries" in picture.get_attribute("aria-label")


def test_composing_says_what_is_not_there(unscripted: Any) -> None:
    unscripted.goto(f"{SITE_URL}gallery/compose/")
    assert "There is nothing to combine here without JavaScript" in article(unscripted)
    assert "tables above" not in article(unscripted) and unscripted.locator("article table:visible").count() == 0


def test_what_scripts_make_is_spoken_of_after_instant_navigation(visit: Visit) -> None:
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    page.evaluate("window.sameDocument = true")
    page.click('.am-card[data-name="causal"]')
    page.wait_for_selector(".am-explorer[data-shown]")
    assert TO_READ in article(page) and page.evaluate("window.sameDocument") is True
