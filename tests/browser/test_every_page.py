"""Every page of the built site: quiet, at home on this host, as narrow as a telephone, and usable by everyone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generator import performance
from docs.generator.examples import catalogue
from tests.browser.axe import grave_problems
from tests.browser.conftest import ROOT, Visit, settle

DESKTOP = {"width": 1280, "height": 900}
TELEPHONE = {"width": 360, "height": 740}
WIDER_THAN_THE_WINDOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


COLOURED_ALIKE = {f"gallery/{entry.name}" for entry in catalogue()} - {
    "gallery/sliding_window",  # a band, and what the readme shows first
    "gallery/document",  # tensors to choose among
    "gallery/neighborhood",  # a canvas
    "gallery/alibi",  # a score
    "gallery/t5_bucket",  # a table, and records of an earlier file
}
"""Pages of recipes, made by one program with one set of colours: contrast is looked at on the others of them."""


def paths() -> list[str]:
    """Every page, from the site's root: those written by hand, and those that a program writes."""
    sources = ROOT / "docs" / "pages"
    written = {str(page.relative_to(sources)) for page in sources.rglob("*.md")}
    by_hand = {page for page in written if not page.startswith(("gallery/", "performance/"))}
    generated = {f"gallery/{name}.md" for name in ("index", "compose", *(entry.name for entry in catalogue()))}
    generated |= {f"performance/{name}" for name in performance.PAGES}
    return sorted(page.removesuffix(".md").removesuffix("index").rstrip("/") for page in by_hand | generated)


@pytest.fixture(scope="module")
def one_page(context: Any) -> Iterator[Visit]:
    """A page of the browser in which one page of the site is opened after the other."""
    visit = Visit(context.new_page())
    visit.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    yield visit
    visit.page.close()


def test_the_pages_looked_at_are_those_of_the_site(built: Path) -> None:
    found = {str(page.parent.relative_to(built)) for page in built.rglob("index.html")}
    assert {"" if path == "." else path for path in found} == set(paths())


@pytest.mark.parametrize("path", paths(), ids=lambda path: path or "home")
def test_a_page_is_quiet_fits_and_has_no_grave_problem_for_anyone(one_page: Visit, path: str) -> None:
    one_page.problems.clear()
    one_page.page.set_viewport_size(DESKTOP)
    page = one_page.open(f"{path}/" if path else "")
    assert page.locator("h1").count() == 1
    page.evaluate(OPEN_ALL)
    settle(page)
    assert grave_problems(page, colours=path not in COLOURED_ALIKE) == []
    page.set_viewport_size(TELEPHONE)
    settle(page)
    assert page.evaluate(WIDER_THAN_THE_WINDOW) <= 0
    assert grave_problems(page, colours=False) == [], "at 360 pixels, where colours are the same"
    assert one_page.problems == []
