"""The index of the gallery: a card an entry, complete without JavaScript."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence

from attn_mods.entry import Entry
from docs.generator.equivalents import bench, on_a_card
from docs.generator.pictures import picture
from docs.generator.prose import prose
from docs.generator.search import searched
from docs.generator.work_table import counted

TITLES = {"mask": "Masks", "score": "Scores"}
LEADS = {
    "mask": "Which keys a query sees. Rows are queries, columns are keys, filled is visible.",
    "score": "What is done to a score before the softmax. The stronger the colour, the higher.",
}


def index_page(catalogue: Sequence[Entry]) -> str:
    """The Markdown of the index."""
    lines = [
        "---",
        "title: Gallery",
        "hide: [toc]",
        "---",
        "",
        "# Gallery",
        "",
        f"{len(catalogue)} recipes, each one file with a rule, a reference it is tested against, and a page. "
        "A card says how many of all pairs the measured case keeps, and how many backends compute it on a CUDA card "
        "in bfloat16.",
        "",
        _controls(catalogue),
        "",
    ]
    for kind, title in TITLES.items():
        cards = [_card(entry) for entry in catalogue if entry.kind == kind]
        lines += [
            f'<section class="am-group" markdown="1">\n\n## {title}\n\n{LEADS[kind]}\n',
            f'<ul class="am-grid">\n{chr(10).join(cards)}\n</ul>\n\n</section>\n',
        ]
    lines.append('<p class="am-none" hidden>No recipe matches. <a href="./">Show all</a></p>')
    return "\n".join(lines)


def _controls(catalogue: Sequence[Entry]) -> str:
    """The filter, which the script uncovers."""
    counts = Counter(tag for entry in catalogue for tag in entry.tags)
    chips = "".join(
        f'<button type="button" class="am-chip" data-tag="{tag}" aria-pressed="false">{tag} <span>{count}</span>'
        "</button>"
        for tag, count in sorted(counts.items())
    )
    return "\n".join(
        [
            '<form class="am-filter" role="search" aria-label="Filter recipes" hidden>',
            '<label for="am-query">Filter by name, paper number, model or argument</label>',
            '<input id="am-query" type="search" autocomplete="off" placeholder="try window_size, or Gemma 2">',
            f'<div class="am-chips" role="group" aria-label="Tags">{chips}</div>',
            '<p class="am-count" role="status"></p>',
            "</form>",
        ]
    )


def _card(entry: Entry) -> str:
    badges = "".join(f"<span>{badge}</span>" for badge in _badges(entry))
    tags = " ".join(sorted(entry.tags))
    return (
        f'<li><a class="am-card" href="{entry.name}/" data-name="{entry.name}" data-tags="{tags}" '
        f'data-search="{html.escape(searched(entry))}">{picture(entry)}'
        f"<strong>{html.escape(entry.title)}</strong>"
        f'<span class="am-summary">{prose(entry.summary)}</span><span class="am-badges">{badges}</span></a></li>'
    )


def _badges(entry: Entry) -> list[str]:
    example = bench(entry)
    able, all_of_them = on_a_card(example)
    badges = [f"{able} of {all_of_them} backends"]
    if entry.kind == "mask":
        work = counted(example)
        badges.insert(0, f"{work.pairs_kept / work.pairs:.1%} of pairs")
    return badges
