"""axe finds nothing serious in dark either, on every kind of page; in light test_every_page looks at all of them."""

from __future__ import annotations

import pytest

from tests.browser.axe import grave_problems
from tests.browser.conftest import Visit, settle

PAGES = {
    "home": "",
    "index": "gallery/",
    "mask": "gallery/sliding_window/",
    "score": "gallery/alibi/",
    "compose": "gallery/compose/",
    "performance": "performance/",
    "wide tables": "performance/sdpa_and_flash/",
    "api": "api/",
}


@pytest.mark.parametrize("path", list(PAGES.values()), ids=list(PAGES))
def test_axe_finds_nothing_serious_in_dark(visit: Visit, path: str) -> None:
    visit.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page = visit.open(path)
    settle(page)
    assert page.get_attribute("body", "data-md-color-scheme") == "slate"
    assert grave_problems(page) == []


def test_axe_notices(visit: Visit) -> None:
    page = visit.open("")
    page.evaluate("document.querySelector('article').insertAdjacentHTML('beforeend', '<button></button>')")
    assert any(problem.startswith("button-name") for problem in grave_problems(page))
