"""The hand-written pages: their Python runs, what they say it prints is printed, their links lead somewhere.

The Python blocks of a page run in order in one namespace, as a reader would type them. A text block directly below a
Python block is what that block prints. Warnings are errors, as in all tests, unless a page filters them itself.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import attn_mods as am
from docs.generator import performance

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
GENERATED = ("gallery", "performance")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\n(?P<code>.*?)^ *```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "text", "console"}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def hand_written() -> list[Path]:
    """Every page of the site that no program writes."""
    return [page for page in sorted(PAGES.rglob("*.md")) if page.relative_to(PAGES).parts[0] not in GENERATED]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """One block of a page that a reader may run.

    Attributes:
        code: What it holds.
        line: Line of the page on which it begins.
        printed: What the page says it prints, or None if it says nothing.
    """

    code: str
    line: int
    printed: str | None


def python_blocks(page: Path) -> Iterator[Block]:
    """The Python blocks of a page."""
    return blocks(page, "python")


def blocks(page: Path, language: str) -> Iterator[Block]:
    """The blocks of a page in a language, each with the text block directly below it."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    for number, fence in enumerate(fences):
        if fence["language"] != language:
            continue
        below = fences[number + 1] if number + 1 < len(fences) else None
        shown = below is not None and below["language"] == "text" and not text[fence.end() : below.start()].strip()
        line = text.count("\n", 0, fence.start("code")) + 1
        yield Block(fence["code"], line, below["code"] if below is not None and shown else None)


def without_trailing_space(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def run_page(page: Path) -> int:
    """Run the Python of a page in one namespace; returns the number of blocks."""
    module = ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    count = 0
    for block in python_blocks(page):
        name = f"<{page_id(page)}, line {block.line}>"
        linecache.cache[name] = (len(block.code), None, block.code.splitlines(keepends=True), name)
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            exec(compile(block.code, name, "exec"), module.__dict__)
        if block.printed is not None:
            assert without_trailing_space(printed.getvalue()) == without_trailing_space(block.printed), name
        count += 1
    return count


def linked(page: Path) -> list[str]:
    """Addresses on a page, code left out; those that begin with a scheme are not ours."""
    addresses = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return [address for address in addresses if not re.match(r"[a-z]+:", address)]


WITH_CODE = [page for page in (*hand_written(), ROOT / "README.md") if list(python_blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=page_id)
def test_python_of_a_page_runs(page: Path) -> None:
    assert run_page(page) >= 1


def test_the_pages_are_there() -> None:
    names = {page.relative_to(PAGES).as_posix() for page in hand_written()}
    concepts = {f"concepts/{name}.md" for name in ("masks", "scores", "tiles", "frames", "conventions")}
    singles = {"index.md", "choose.md", "how_tested.md", "how_measured.md", "add_a_recipe.md", "api.md", "cannot.md"}
    assert names >= concepts | singles


@pytest.mark.parametrize("page", hand_written(), ids=page_id)
def test_every_fence_says_what_it_holds(page: Path) -> None:
    """A fence without a language would be code that nothing runs."""
    text = page.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(FENCE.findall(text)), "a fence is not closed"
    assert {fence["language"] for fence in FENCE.finditer(text)} <= LANGUAGES


@pytest.mark.parametrize("page", hand_written(), ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    recipes = {PAGES / "gallery" / f"{name}.md" for name in am.names()}
    generated = {PAGES / "gallery" / "index.md", PAGES / "gallery" / "compose.md"}
    generated |= {PAGES / "performance" / name for name in performance.PAGES}
    for address in linked(page):
        target = (page.parent / address).resolve()
        assert target in recipes | generated or target.is_file(), f"{page_id(page)} links to {address}"


@pytest.mark.parametrize("name", am.names())
def test_choose_leads_to_every_entry(name: str) -> None:
    page = PAGES / "choose.md"
    entry = am.info(name)
    assert entry.build is not None
    code = "".join(block.code for block in python_blocks(page))
    assert re.search(rf"\b{entry.kind}s\.{entry.build.__name__}\b", code), f"no code on choose.md makes {name}"
    assert linked(page).count(f"gallery/{name}.md") >= 2, "in the table at the top, and where its line of code is"


def test_api_page_names_all_that_is_public() -> None:
    directives = DIRECTIVE.findall((PAGES / "api.md").read_text(encoding="utf-8"))
    assert len(directives) == len(set(directives))
    named = {directive.removeprefix("attn_mods.").partition(".")[0] for directive in directives}
    assert named == set(am.__all__)


def test_the_entry_shown_is_that_of_contributing() -> None:
    (shown,) = python_blocks(ROOT / "CONTRIBUTING.md")
    assert shown.code in [block.code for block in python_blocks(PAGES / "add_a_recipe.md")]


def test_a_wrong_print_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md, line 2"):
        run_page(page)
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    assert run_page(page) == 1


def test_a_warning_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text('```python\nimport warnings\nwarnings.warn("said aloud")\n```\n', encoding="utf-8")
    with pytest.raises(UserWarning, match="said aloud"):
        run_page(page)
