"""The generated pages: complete, the same every time, with links that lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_mods import registry
from docs.generator import performance
from docs.generator.examples import catalogue, make
from docs.generator.prose import formula
from docs.generator.recipe_page import marks, related
from docs.generator.search import searched

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
NAMES = [entry.name for entry in catalogue()]
SECTIONS = [
    "Explorer",
    "Use it",
    "Rule",
    "Parameters",
    "Blocks and pairs",
    "Which backends compute it",
    "Measured speed",
    "How it was checked",
    "Traps",
    "Related",
]


def test_generating_again_gives_the_same_files(pages: dict[str, str], tmp_path: Path) -> None:
    code = f"from pathlib import Path; from docs.generate import main; main(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    folder = tmp_path / "gallery"
    written = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}
    assert written.keys() == pages.keys()
    assert [name for name in pages if written[name] != pages[name]] == []


def test_every_entry_has_a_page_and_frames(pages: dict[str, str]) -> None:
    assert len(NAMES) == len(registry.names(kind="mask")) + len(registry.names(kind="score"))
    assert {f"{name}.md" for name in NAMES} | {"index.md", "compose.md"} == {
        name for name in pages if name.endswith(".md")
    }
    assert {f"frames/{name}.json" for name in NAMES} < pages.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_its_sections_in_order(pages: dict[str, str], name: str) -> None:
    page = pages[f"{name}.md"]
    wanted = [title for title in SECTIONS if title != "Blocks and pairs" or registry.info(name).kind == "mask"]
    assert re.findall(r"^## (.+?)(?: \{.*\})?$", page, re.MULTILINE) == wanted
    for paper in registry.info(name).papers:
        assert (paper.arxiv or paper.url or "") in page


@pytest.mark.parametrize("name", NAMES)
def test_a_card_stands_on_the_index(pages: dict[str, str], name: str) -> None:
    entry = registry.info(name)
    tags = " ".join(sorted(entry.tags))
    assert f'<a class="am-card" href="{name}/" data-name="{name}" data-tags="{tags}"' in pages["index.md"]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("2310.06825", "sliding_window"),
        ("gemma 2", "softcap"),
        ("window_size", "sliding_window"),
        ("is_causal", "causal"),
        ("alibi_slopes", "alibi"),
        ("cu_seqlens_q", "document_causal"),
        ("attn_logit_softcapping", "softcap"),
    ],
)
def test_the_filter_finds_numbers_models_and_arguments(asked: str, name: str) -> None:
    assert asked in searched(registry.info(name))


@pytest.mark.parametrize("name", [name for name in NAMES if registry.info(name).kind == "mask"])
def test_counts_on_a_page_are_those_of_the_dense_mask(pages: dict[str, str], name: str) -> None:
    row = re.search(r"^\| ([\d,]+) x ([\d,]+) \| .*? \| .*? \| .*? \| ([\d,]+) \|", pages[f"{name}.md"], re.MULTILINE)
    assert row is not None
    q_len, kv_len, kept = (int(number.replace(",", "")) for number in row.groups())
    example = make(registry.info(name), "bench", q_len, kv_len)
    assert example is not None
    assert int(example.part.dense(q_len, kv_len).sum()) == kept


def test_links_lead_to_pages(pages: dict[str, str]) -> None:
    seen = 0
    for name in [name for name in pages if name.endswith(".md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+\.md)", pages[name]):
            path = os.path.normpath(os.path.join("gallery", target))
            generated = path.removeprefix("gallery/") in pages or path.removeprefix("performance/") in performance.PAGES
            assert generated or (PAGES / path).exists(), f"{name} links to {target}"
            seen += 1
        for target in re.findall(r'href="(?!https?:)([^"]+)"', pages[name]):
            folder = "gallery/" if name == "index.md" else f"gallery/{name.removesuffix('.md')}/"
            path = os.path.normpath(folder + target.partition("?")[0])
            assert path == "gallery" or f"{path.removeprefix('gallery/')}.md" in pages, f"{name} links to {target}"
            seen += 1
    assert seen > 200


def test_pages_name_no_host_but_where_a_definition_is_from(pages: dict[str, str]) -> None:
    cited = {paper.url for entry in catalogue() for paper in entry.papers if paper.url}
    cited |= {f"https://arxiv.org/abs/{paper.arxiv}" for entry in catalogue() for paper in entry.papers if paper.arxiv}
    for name, text in pages.items():
        assert set(re.findall(r"https?://[^\s\"')<>]+", text)) <= cited, name


@pytest.mark.parametrize("name", NAMES)
def test_related_recipes_have_something_in_common(name: str) -> None:
    entry = registry.info(name)
    found = related(entry, catalogue())
    assert found and all(marks(other) & marks(entry) and other.name != name for other in found)


@pytest.mark.parametrize(
    ("name", "other"), [("left_padding", "key_padding"), ("document_causal", "document"), ("softcap", "alibi")]
)
def test_the_nearest_are_related(name: str, other: str) -> None:
    assert other in [each.name for each in related(registry.info(name), catalogue())]


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        (
            "keep (i, j) iff 0 <= i - j < window.",
            "keep (<var>i</var>, <var>j</var>) iff 0 ≤ <var>i</var> \N{MINUS SIGN} <var>j</var>",
        ),
        ("floor((i - 1) / floor(j / 2))", "⌊(<var>i</var> \N{MINUS SIGN} 1) / ⌊<var>j</var> / 2⌋⌋"),
        ("10^(2k / d)", "10<sup>2<var>k</var> / <var>d</var></sup>"),
        ("a table[h]", "a <code>table</code>&#91;<var>h</var>&#93;"),
    ],
)
def test_a_rule_is_set_as_one_reads_it(rule: str, written: str) -> None:
    assert formula(rule, {"window", "table"}).startswith(written)
