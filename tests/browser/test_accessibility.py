"""axe finds nothing serious on any kind of page, in light and in dark."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Visit

PAGES = {
    "home": "",
    "index": "gallery/",
    "mask": "gallery/sliding_window/",
    "score": "gallery/alibi/",
    "compose": "gallery/compose/",
    "performance": "performance/",
    "wide tables": "performance/sdpa_and_flash/",
    "more tables": "performance/block_masks/",
    "wide code": "gallery/cumsum_ar/",
    "choose": "choose/",
    "concept": "concepts/tiles/",
    "api": "api/",
}
GRAVE = ("serious", "critical")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", list(PAGES.values()), ids=list(PAGES))
def test_axe_finds_nothing_serious(visit: Visit, path: str, scheme: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page = visit.open(path)
    if page.query_selector(".am-explorer, .am-compose"):
        page.wait_for_selector("[data-shown]")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found = Axe().run(page).response["violations"]
    assert [described(problem) for problem in found if problem["impact"] in GRAVE] == []


def described(problem: Any) -> str:
    """A problem and the first place where it is."""
    nodes = problem["nodes"]
    return f"{problem['id']} ({len(nodes)}): {nodes[0]['html'][:160]} {nodes[0]['failureSummary']}"
