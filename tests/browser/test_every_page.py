"""Every page of the built site: quiet, at home on this host, as narrow as a telephone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generator.examples import catalogue
from tests.browser.conftest import Visit

WIDER_THAN_THE_WINDOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def paths(built: Path) -> list[str]:
    """Every page, from the site's root."""
    found = sorted(str(page.parent.relative_to(built)) for page in built.rglob("index.html"))
    return ["" if path == "." else f"{path}/" for path in found]


def test_every_page_is_quiet_asks_no_other_host_and_fits_360_pixels(
    built: Path, visit: Visit, record_property: Callable[[str, object], None]
) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    every = paths(built)
    assert len(every) >= len(catalogue()) + 5
    problems = {}
    for path in every:
        page = visit.open(path)
        if page.query_selector(".am-explorer, .am-compose"):
            page.wait_for_selector("[data-shown]")
        assert page.query_selector_all("h1"), path
        found = [*visit.problems, *(["too wide"] if page.evaluate(WIDER_THAN_THE_WINDOW) > 0 else [])]
        if found:
            problems[path] = found
        visit.problems.clear()
    assert problems == {}
    record_property("pages opened in Chromium", len(every))
