"""The hook mends the program it was written for, and says when the theme has another."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

from docs.mended_search import AMBIGUOUS, PLAIN, on_post_build


def built(folder: Path, *programs: str) -> MkDocsConfig:
    """A site whose search has these programs."""
    workers = folder / "assets" / "javascripts" / "workers"
    workers.mkdir(parents=True)
    for number, text in enumerate(programs):
        (workers / f"search.{number}.min.js").write_text(text, encoding="utf-8")
    config = MkDocsConfig()
    config.site_dir = str(folder)
    return config


def test_a_comma_ends_each_number(tmp_path: Path) -> None:
    on_post_build(built(tmp_path, f"before {AMBIGUOUS} after"))
    (mended,) = tmp_path.rglob("*.js")
    assert mended.read_text(encoding="utf-8") == f"before {PLAIN} after"


@pytest.mark.parametrize("programs", [(), ("another",), (AMBIGUOUS * 2,), (AMBIGUOUS, AMBIGUOUS)])
def test_another_program_is_refused(programs: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="the theme's search is another"):
        on_post_build(built(tmp_path, *programs))
