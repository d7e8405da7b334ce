"""The site's search: what is asked for leads to its recipe."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.generator.examples import catalogue
from tests.browser.asked import asked
from tests.browser.conftest import Visit

FIRST = 3
"""Among how many pages the recipe must be; if more are meant, among as many as are meant."""

PAGES_FOUND = """async (queries) => {
    const theme = JSON.parse(document.querySelector("#__config").textContent);
    const base = new URL(theme.base + "/", location.href);
    const worker = new Worker(new URL(theme.search, location.href));
    const answer = (type, data) => new Promise((done) => {
        worker.onmessage = (event) => done(event.data.data);
        worker.postMessage({ type, data });
    });
    const index = await (await fetch(new URL("search/search_index.json", base))).json();
    const [setup, query] = [0, 2];
    await answer(setup, { ...index, options: {} });
    const found = [];
    for (const text of queries) {
        const { items } = await answer(query, text);
        found.push(items.map((sections) => sections[0].location.split("#")[0]));
    }
    worker.terminate();
    return found;
}"""
"""What the program of the page's search answers, in its order, each page by its path."""


def test_every_name_model_and_paper_leads_to_its_recipe(
    visit: Visit, record_property: Callable[[str, object], None]
) -> None:
    queries = asked()
    found = visit.open("").evaluate(PAGES_FOUND, list(queries))
    lost = {}
    for (query, meant), pages in zip(queries.items(), found, strict=True):
        first = pages[: max(FIRST, len(meant))]
        if not {f"gallery/{name}/" for name in meant} <= set(first):
            lost[query] = (sorted(meant), first)
    assert lost == {}
    record_property("searches made", len(queries))


def test_the_words_of_a_page_stand_apart_in_the_index(built: Path) -> None:
    """What stands in different elements must not become one word, which no search begins with."""
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = {each["location"]: each["text"] for each in index["docs"]}
    for entry in catalogue():
        words = set(re.findall(r"[\w.-]+", texts[f"gallery/{entry.name}/"]))
        for title in [paper.title for paper in entry.papers] + [model.name for model in entry.models]:
            assert re.findall(r"[\w.-]+", title)[0] in words, f"{entry.name}: {title}"


@pytest.mark.parametrize(
    ("query", "path"),
    [("Choose a mask", "choose/"), ("Add a recipe", "add_a_recipe/"), ("How it is tested", "how_tested/")],
)
def test_recipes_do_not_hide_the_other_pages(visit: Visit, query: str, path: str) -> None:
    (pages,) = visit.open("").evaluate(PAGES_FOUND, [query])
    assert path in pages[:FIRST]


def results(visit: Visit, query: str) -> Any:
    """The page after a query is typed; what is typed before the index is there is lost, and is typed again."""
    for _ in range(5):
        page = visit.open("")
        page.wait_for_timeout(1500)
        page.fill(".md-search__input", query)
        with contextlib.suppress(Exception):
            page.wait_for_selector(".md-search-result__link", state="attached", timeout=8000)
            break
    return page


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("arXiv:2108.12409", "gallery/alibi/"),
        ("Gemma 2", "gallery/softcap/"),
        ("StreamingLLM", "gallery/sink_plus_win"),
    ],
)
def test_what_is_typed_is_found(visit: Visit, query: str, path: str) -> None:
    page = results(visit, query)
    links = page.eval_on_selector_all(
        ".md-search-result__item > .md-search-result__link", "links => links.map((link) => link.href)"
    )
    assert any(path in link for link in links[:FIRST])


def test_of_the_names_of_a_result_those_asked_for_are_shown(visit: Visit) -> None:
    page = results(visit, "Gemma")
    page.check("#__search", force=True)
    shown = [tag.lower() for tag in page.locator(".md-search-result .md-tag:visible").all_inner_texts()]
    assert shown and all("gemma" in tag for tag in shown)
