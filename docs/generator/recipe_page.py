"""The page of one entry."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Sequence

from attn_mods import description
from attn_mods.entry import Entry, Model, Paper
from docs.generator import search
from docs.generator.axes import Explorer
from docs.generator.checked import how_checked
from docs.generator.equivalents import equivalents
from docs.generator.examples import first
from docs.generator.measured import measured_speed
from docs.generator.pictures import TOKENS, picture
from docs.generator.prose import bulleted, code, formula, prose, scripted
from docs.generator.usage import tabs
from docs.generator.work_table import work_table

MOST_RELATED = 4
TO_READ = "Point at a row, or use the arrow keys on the picture, to read it in words."
SHOWN_ON = {
    "zero": "The colour is what a score of 0 becomes at each pair",
    "one": "The colour is what a score of 1 becomes at each pair",
    "ramp": "The scores rise from -100 at the first key to 100 at the last; the colour is what they become",
}


def recipe_page(entry: Entry, explorer: Explorer, catalogue: Sequence[Entry]) -> str:
    """The Markdown of an entry's page, its sections in the order that all pages have."""
    sections = [
        _head(entry),
        _section("Explorer", _explorer(entry, explorer)),
        _section("Use it", tabs(entry)),
        _section("Rule", _rule(entry)),
        _section("Parameters", _parameters(entry)),
    ]
    if entry.kind == "mask":
        sections.append(_section("Blocks and pairs", work_table(entry), search.SECTION_LEFT_OUT))
    sections += [
        _section("Which backends compute it", equivalents(entry)),
        _section("Measured speed", measured_speed(entry), search.SECTION_LEFT_OUT),
        _section("How it was checked", how_checked(entry)),
        _section("Traps", bulleted(prose(trap) for trap in entry.traps) or "None known."),
        _section("Related", _related(entry, catalogue)),
    ]
    return "\n".join(sections)


def _section(title: str, body: str, attributes: str = "") -> str:
    heading = f"## {title} {{ {attributes} }}" if attributes else f"## {title}"
    return f"\n{heading}\n\n{body}\n"


def _head(entry: Entry) -> str:
    links = " ".join(f'<a class="am-tag" href="../?tags={tag}">{tag}</a>' for tag in sorted(entry.tags))
    lines = [
        "---",
        f"title: {json.dumps(entry.title)}",
        f"description: {json.dumps(html.escape(entry.summary.replace('``', '')))}",
        f"tags: {json.dumps(search.names(entry))}",
        "---",
        "",
        f"# {prose(entry.title)}",
        "",
        f'<p class="am-lead">{prose(entry.summary)}</p>',
        "",
        f'<p class="am-facts">{code(entry.name)} <span>{entry.kind}</span> {links}</p>',
        "",
        '<dl class="am-sources">',
        f"<div><dt>From</dt> <dd>{'<br> '.join(_paper(paper) for paper in entry.papers)}</dd></div>",
    ]
    if entry.models:
        lines.append(f"<div><dt>Used by</dt> <dd>{', '.join(_model(model) for model in entry.models)}</dd></div>")
    return "\n".join([*lines, "</dl>", ""])


def _paper(paper: Paper) -> str:
    if paper.arxiv:
        link = f'<a href="https://arxiv.org/abs/{paper.arxiv}">{prose(paper.title)}</a>, arXiv {paper.arxiv}'
    else:
        link = f'<a href="{html.escape(paper.url or "")}">{prose(paper.title)}</a>'
    return f"{link}, {prose(paper.where)}" if paper.where else link


def _model(model: Model) -> str:
    return f"{prose(model.name)} ({code(model.field)})" if model.field else prose(model.name)


def _explorer(entry: Entry, explorer: Explorer) -> str:
    example = first(entry, TOKENS)
    pairs = f"{example.q_len} queries x {example.kv_len} keys"
    label = f"{entry.title}, {pairs}: queries from top to bottom, keys from left to right"
    caption = "Each square is a query (row) and a key (column). "
    caption += (
        "Filled: the query sees the key."
        if entry.kind == "mask"
        else f"{SHOWN_ON[explorer.shown_on]}, the stronger the higher."
    )
    if not explorer.axes:
        caption += " This recipe has no parameters that change the picture."
    return "\n".join(
        [
            f"<p>{caption} {scripted(TO_READ)}</p>",
            f'<div class="am-explorer" data-frames="../frames/{entry.name}.json">',
            f"<noscript>{picture(entry, label)}<p {search.SECTION_LEFT_OUT}>This is one picture, of {pairs}. "
            "With JavaScript it has controls, and each row is told in words.</p></noscript>",
            "</div>",
        ]
    )


def _rule(entry: Entry) -> str:
    return f'<p class="am-rule">{formula(description.rule(entry), description.parameters(entry))}</p>'


def _parameters(entry: Entry) -> str:
    meanings = description.parameters(entry)
    if not meanings:
        return "None."
    rows = [f"| {code(name)} | {prose(meaning)} |" for name, meaning in meanings.items()]
    return "\n".join(["| name | meaning, unit, bounds |", "| --- | --- |", *rows])


def related(entry: Entry, catalogue: Sequence[Entry]) -> list[Entry]:
    """The entries that share most, rare tags and words of the name counting most; in the order of the catalogue."""
    bearing = Counter(word for other in catalogue for word in marks(other))
    shared = {
        other.name: math.fsum(1 / bearing[mark] for mark in marks(other) & marks(entry))  # the same in any order
        for other in catalogue
        if other.name != entry.name
    }
    others = [other for other in catalogue if shared.get(other.name)]
    return sorted(others, key=lambda other: -shared[other.name])[:MOST_RELATED]


def marks(entry: Entry) -> set[str]:
    """Its tags, the words of its name, and what kind it is."""
    return {*entry.tags, *(f"name {word}" for word in entry.name.split("_")), f"kind {entry.kind}"}


def _related(entry: Entry, catalogue: Sequence[Entry]) -> str:
    found = related(entry, catalogue)
    return bulleted([f"[{other.title}]({other.name}.md): {prose(other.summary)}" for other in found]) or "None."
