"""axe finds nothing serious in dark either, on every kind of page; in light test_every_page looks at all of them."""

from __future__ import annotations

import re

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


CONTRAST = """chart => {
    const luminance = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255)
        .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const marks = [...chart.querySelectorAll(".am-chart-dot")].map((mark) => luminance(getComputedStyle(mark).fill));
    const ground = luminance(getComputedStyle(document.body).backgroundColor);
    return Math.min(...marks.map((mark) => (Math.max(mark, ground) + 0.05) / (Math.min(mark, ground) + 0.05)));
}"""
"""The least contrast of a mark of a chart to the page, as WCAG 2.2 calculates it; it asks for 3 of what is drawn."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_marks_of_a_chart_are_seen_and_its_legend_is_spoken(visit: Visit, scheme: str) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    page = visit.open("gallery/causal/", ".am-chart")
    assert page.locator(".am-chart").first.evaluate(CONTRAST) >= 3
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    spoken = [node["description"]["value"] for node in nodes if "backend at each length" in str(node.get("name"))]
    charts = page.locator(".am-chart").all()
    legends = [each.locator("text", has_text="tokens").all_text_contents() for each in charts]
    assert legends and all(len(lengths) > 1 for lengths in legends)
    assert [re.sub(r"[a-z]+: ", "", each).split("; ") for each in spoken] == legends


def test_axe_notices(visit: Visit) -> None:
    page = visit.open("")
    page.evaluate("document.querySelector('article').insertAdjacentHTML('beforeend', '<button></button>')")
    assert any(problem.startswith("button-name") for problem in grave_problems(page))
