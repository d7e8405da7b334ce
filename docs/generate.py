"""Write the generated pages of the site: ``python -m docs.generate``, before mkdocs builds it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generator import performance
from docs.generator.axes import explorer
from docs.generator.compose import compose_data, compose_page
from docs.generator.examples import catalogue
from docs.generator.explorer import explorer_data
from docs.generator.index_page import TITLES, index_page
from docs.generator.recipe_page import recipe_page

PAGES = Path(__file__).parent / "pages"


def gallery() -> Iterator[tuple[str, str]]:
    """Path below the gallery's folder and text of every file."""
    entries = catalogue()
    yield "index.md", index_page(entries)
    yield "compose.md", compose_page()
    yield "compose.json", _json(compose_data(entries))
    for entry in entries:
        shown = explorer(entry)
        yield f"{entry.name}.md", recipe_page(entry, shown, entries)
        yield f"frames/{entry.name}.json", _json(explorer_data(shown))
    groups = [
        {title: [f"{entry.name}.md" for entry in entries if entry.kind == kind]} for kind, title in TITLES.items()
    ]
    yield ".nav.yml", _json({"nav": ["index.md", {"Compose": "compose.md"}, *groups]})


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True) + "\n"


def main(folder: Path = PAGES) -> None:
    """Write every generated file anew."""
    measured = ((name, write()) for name, write in performance.PAGES.items())
    for part, files in (("gallery", gallery()), ("performance", measured)):
        shutil.rmtree(folder / part, ignore_errors=True)
        for name, text in files:
            path = folder / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
