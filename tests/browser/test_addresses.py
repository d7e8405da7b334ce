"""What an address asks for is shown, and what of it is not here is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_mods import registry
from attn_mods.masks import SlidingWindow
from tests.browser.conftest import SITE_URL, Visit
from tests.browser.test_explorer import choose, opacities
from tests.browser.test_index import CARDS, chip, shown

NOTICE = '.am-notice[role="status"]'
START = "window 3, length 32, view tokens, block size 8, zoom automatic"
PAIR = "sliding_window & document"
IGNORED = {
    "sliding_window/?window=7": (
        "window cannot be “7”, only 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64",
        START,
    ),
    "sliding_window/?window=-1": ("window cannot be “-1”", START),
    "sliding_window/?window=": ("window cannot be “”", START),
    "sliding_window/?widow=3": ("“widow” is nothing that can be set here", START),
    "sliding_window/?length=99&window=6": (
        "length cannot be “99”, only 16, 32, 64",
        "window 6, length 32, view tokens, block size 8, zoom automatic",
    ),
    "sliding_window/?view=squares": ("view cannot be “squares”, only tokens, blocks", START),
    "sliding_window/?block-size=5": ("block-size cannot be “5”, only 4, 8, 16", START),
    "document/?case=none": (
        "case cannot be “none”, only tiny, one, ",
        "case tiny, length 32, view tokens, block size 8, zoom automatic",
    ),
    "softcap/?cap=%3Cb%3E": ("cap cannot be “<b>”, only 0.1, ", "cap 50, length 32, zoom automatic"),
    "sliding_window/?window=6&window=3": ("“window” is given more than once", START),
    "?filter=window&filter=document": ("“filter” is given more than once", "recipes that match “window”"),
    "sliding_window/?zoom=7": ("zoom cannot be “7”, only automatic, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24", START),
    "softcap/?zoom=large&length=16": ("zoom cannot be “large”", "cap 50, length 16, zoom automatic"),
    "sliding_window/?zoom=20&window=7": (
        "window cannot be “7”",
        "window 3, length 32, view tokens, block size 8, zoom 20",
    ),
    "compose/?zoom=5": ("“zoom” is nothing that can be set here", PAIR),
    "compose/?terms=causal.and.no_such": ("no mask is called “no_such”; at least two masks are combined", PAIR),
    "compose/?terms=no_such.or.causal.minus.document": ("no mask is called “no_such”", "causal - document"),
    "compose/?terms=causal.xor.document": ("no operator is called “xor”, only and, or, minus", "causal & document"),
    "compose/?terms=causal.or.document.and": ("nothing follows “and”", "causal | document"),
    "compose/?terms=causal": ("at least two masks are combined", PAIR),
    "compose/?terms=full.or.full.or.full.or.full.or.area": (
        "no more than 4 masks are combined",
        "((full | full) | full) | full",
    ),
    "compose/?masks=causal": ("“masks” is nothing that can be set here", PAIR),
    "?tags=causal,no-such": ("no tag is called “no-such”", "recipes that are tagged causal"),
    "?tags=no-such": ("no tag is called “no-such”", "all recipes"),
    "?tag=causal&filter=llama": ("“tag” is nothing that can be set here", "recipes that match “llama”"),
}
"""Address, what is said to be ignored of it, and what is said to be shown."""


def notice(page: Any) -> str:
    """What is said of the address."""
    text: str = page.inner_text(NOTICE)
    return text


@pytest.mark.parametrize("path", IGNORED)
def test_what_is_ignored_is_said(visit: Visit, path: str) -> None:
    ignored, instead = IGNORED[path]
    page = visit.open(f"gallery/{path}", "[data-shown], .am-filter:not([hidden])")
    assert notice(page).startswith(f"Ignored in the address: {ignored}")
    assert notice(page).endswith(f" Shown instead: {instead}.")


@pytest.mark.parametrize(
    "path",
    [
        "gallery/sliding_window/",
        "gallery/sliding_window/?window=6&length=64&view=blocks&block-size=16&h=window",
        "gallery/sliding_window/?zoom=20",
        "gallery/softcap/?zoom=automatic",
        "gallery/softcap/?cap=0.25",
        "gallery/softcap/?cap=50.0",
        "gallery/alibi/?form=key_only&head=3&length=16",
        "gallery/tree_verification/?length=8x12&case=per_sample",
        "gallery/multimodal_spans/?window=none",
        "gallery/dilated_window/?causal=yes",
        "gallery/compose/",
        "gallery/compose/?terms=not-causal.or.document.minus.full",
        "gallery/",
        "gallery/?tags=causal,packed&filter=llama",
        "gallery/?q=window",
    ],
)
def test_nothing_is_said_of_what_is_there(visit: Visit, path: str) -> None:
    page = visit.open(path, "[data-shown], .am-filter:not([hidden])")
    assert notice(page) == "" and page.locator(NOTICE).count() == 1


def test_an_address_shows_what_was_chosen(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/?window=6&length=16", ".am-explorer[data-shown]")
    assert torch.equal(opacities(page).bool(), SlidingWindow(window=6).dense(16, 16))
    assert page.input_value('.am-controls [name="window"]') == "5"
    choose(page, "length", 2)
    page.click('.am-toggle button:has-text("blocks")')
    assert page.url == f"{SITE_URL}gallery/sliding_window/?window=6&length=64&view=blocks"
    again = visit.open("gallery/sliding_window/?window=6&length=64&view=blocks", ".am-explorer[data-shown]")
    assert again.get_attribute('.am-toggle button:has-text("blocks")', "aria-pressed") == "true"
    assert opacities(again).shape == (64, 64)


def test_an_address_shows_the_zoom_that_was_chosen(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/?zoom=20&length=16", ".am-explorer[data-shown]")
    assert page.get_attribute(".am-canvas", "data-zoom") == "20"
    assert torch.equal(opacities(page).bool(), SlidingWindow(window=3).dense(16, 16))
    page.select_option('.am-controls [name="zoom"]', label="5")
    assert page.get_attribute(".am-canvas", "data-zoom") == "5"
    assert page.url == f"{SITE_URL}gallery/sliding_window/?length=16&zoom=5"
    page.select_option('.am-controls [name="zoom"]', label="automatic")
    assert page.url == f"{SITE_URL}gallery/sliding_window/?length=16"


def test_a_choice_takes_back_what_was_said(visit: Visit) -> None:
    page = visit.open("gallery/sliding_window/?window=7&h=key", ".am-explorer[data-shown]")
    choose(page, "window", 0)
    assert notice(page) == "" and page.url == f"{SITE_URL}gallery/sliding_window/?h=key&window=1"
    page = visit.open("gallery/compose/?terms=causal.xor.document", ".am-compose[data-shown]")
    page.locator('.am-term >> nth=0 >> [name="mask"]').select_option(label=registry.info("full").title)
    assert notice(page) == "" and page.url.endswith("?terms=full.and.document")
    page = visit.open("gallery/?tags=no-such", ".am-filter:not([hidden])")
    chip(page, "causal").click()
    assert notice(page) == "" and page.url.endswith("?tags=causal")
    page.go_back()
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length === {len(registry.names())}")
    assert "no tag is called “no-such”" in notice(page) and len(shown(page)) == len(registry.names())


@pytest.mark.parametrize("link", [".md-nav--secondary a[href*='#traps']", "#rule .headerlink"])
def test_a_link_within_a_page_keeps_what_was_chosen(visit: Visit, link: str) -> None:
    page = visit.open("gallery/sliding_window/", ".am-explorer[data-shown]")
    choose(page, "window", 5)
    shown_before = page.get_attribute(".am-explorer", "data-shown")
    page.eval_on_selector(link, "link => link.click()")
    page.wait_for_function("location.hash")
    page.wait_for_timeout(500)
    assert "window=6" in page.url
    assert page.get_attribute(".am-explorer", "data-shown") == shown_before


def test_a_link_within_the_index_keeps_its_filter(visit: Visit) -> None:
    page = visit.open("gallery/", CARDS)
    before = len(shown(page))
    chip(page, "causal").click()
    kept = shown(page)
    assert 0 < len(kept) < before
    page.locator("#masks .headerlink").click(force=True)
    page.wait_for_function("location.hash")
    page.wait_for_timeout(500)
    assert shown(page) == kept
