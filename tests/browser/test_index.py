"""The index: filter, tags, address, and the way to a recipe and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from attn_mods import registry
from docs.generator.examples import catalogue
from docs.generator.search import searched
from tests.browser.asked import asked
from tests.browser.conftest import SITE_URL, Visit

CARDS = "li:not([hidden]) > .am-card"


def shown(page: Any) -> list[str]:
    """Names of the recipes whose cards are visible."""
    return page.eval_on_selector_all(CARDS, "cards => cards.map(card => card.dataset.name)")


def chip(page: Any, tag: str) -> Any:
    """The button of a tag."""
    return page.locator(f'.am-chip[data-tag="{tag}"]')


@pytest.mark.parametrize(
    ("asked", "name"),
    [("2108.12409", "alibi"), ("Gemma 2", "softcap"), ("window_size", "sliding_window"), ("packed", "document")],
)
def test_the_filter_shows_what_matches(visit: Visit, asked: str, name: str) -> None:
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    page.fill("#am-query", asked)
    assert name in shown(page) and len(shown(page)) < len(registry.names())
    assert f"{len(shown(page))} of" in page.inner_text(".am-count")
    assert page.url.startswith(f"{SITE_URL}gallery/?filter=")


def matching(query: str) -> list[str]:
    """The recipes in whose texts every word of a query begins a word."""
    starts = [rf"(?<![^\W_]){re.escape(word)}" for word in re.split(r"[^\w.]|_", query.lower()) if word]
    texts = {entry.name: searched(entry) for entry in catalogue()}
    return [name for name, text in texts.items() if all(re.search(start, text) for start in starts)]


@pytest.mark.parametrize(
    "query", ["nsa", "ask", "cap", "slide", "ttn", "softcap gemma", "packed llama", "arXiv:2310.06825"]
)
def test_words_match_at_their_start_and_all_of_them(visit: Visit, query: str) -> None:
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    page.fill("#am-query", query)
    assert shown(page) == matching(query)


def test_every_name_model_paper_and_tag_is_found(visit: Visit, record_property: Callable[[str, object], None]) -> None:
    queries = asked() | {tag: set(registry.names(tag=tag)) for entry in catalogue() for tag in entry.tags}
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    lost = {}
    for query, meant in queries.items():
        page.fill("#am-query", query)
        if not meant <= set(shown(page)):
            lost[query] = sorted(meant - set(shown(page)))
    assert lost == {}
    record_property("filters typed", len(queries))


@pytest.mark.parametrize("asked", ["no-such-recipe", "%3F%3F%3F", "%F0%9F%98%80"])
def test_nothing_that_matches_is_said(visit: Visit, asked: str) -> None:
    page = visit.open(f"gallery/?filter={asked}", ".am-filter:not([hidden])")
    assert shown(page) == [] and page.is_visible(".am-none")
    page.click(".am-none a")
    page.wait_for_function("!location.search")
    page.wait_for_selector(CARDS)


def test_tags_stand_in_the_address_and_the_back_button_takes_them_off(visit: Visit) -> None:
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    chip(page, "causal").click()
    assert page.url == f"{SITE_URL}gallery/?tags=causal"
    assert shown(page) == registry.names(tag="causal")
    chip(page, "packed").click()
    assert page.url == f"{SITE_URL}gallery/?tags=causal,packed"
    both = [name for name in registry.names(tag="causal") if "packed" in registry.info(name).tags]
    assert shown(page) == both
    page.go_back()
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length === {len(registry.names(tag='causal'))}")
    assert chip(page, "causal").get_attribute("aria-pressed") == "true"
    assert chip(page, "packed").get_attribute("aria-pressed") == "false"
    page.go_back()
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length === {len(registry.names())}")


def test_an_address_with_tags_can_be_sent_to_someone(visit: Visit) -> None:
    page = visit.open("gallery/?tags=causal,packed&filter=llama", ".am-filter:not([hidden])")
    assert page.input_value("#am-query") == "llama"
    assert shown(page) == ["document_causal"]


def test_from_card_to_page_and_back_without_loading_the_site_anew(visit: Visit) -> None:
    page = visit.open("gallery/", ".am-filter:not([hidden])")
    page.evaluate("window.sameDocument = true")
    page.click('.am-card[data-name="sliding_window"]')
    page.wait_for_selector(".am-explorer[data-shown]")
    assert page.url == f"{SITE_URL}gallery/sliding_window/"
    before = page.get_attribute(".am-explorer", "data-shown")
    page.locator('.am-controls input[name="window"]').fill("6")
    assert page.get_attribute(".am-explorer", "data-shown") != before
    page.click('.am-tag:has-text("local")')
    page.wait_for_selector(".am-filter:not([hidden])")
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length === {len(registry.names(tag='local'))}")
    page.go_back()
    page.wait_for_selector(".am-explorer[data-shown]")
    assert page.evaluate("window.sameDocument") is True


def test_all_cards_are_links_without_javascript(chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{SITE_URL}gallery/")
    assert page.locator(".am-card:visible").count() == len(registry.names())
    assert page.locator(".am-filter").is_hidden()
    drawn = page.locator(".am-card svg.am-picture:has(path[d^='M']):visible")
    assert drawn.count() == len(registry.names())
    assert all(picture.bounding_box()["width"] > 60 for picture in drawn.all())
    page.click('.am-card[data-name="alibi"]')
    assert page.url == f"{SITE_URL}gallery/alibi/"
    assert page.locator(".am-explorer svg").is_visible()
    context.close()
