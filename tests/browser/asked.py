"""What is asked for in the search and in the filter, and the recipes that are meant by it: from the catalogue alone."""

from __future__ import annotations

from collections.abc import Iterator

from attn_mods.entry import Entry
from docs.generator.examples import catalogue
from docs.generator.fixed_functions import argument_names

ALSO = {
    "StreamingLLM": "sink_plus_window",
    "Native Sparse Attention": "selected_blocks",
    "FoX": "forgetting",
    "SSMax": "log_n_scale",
    "STA": "sliding_tile",
    "packed": "document",
}
"""What is on everyone's lips without being a name in the catalogue."""

SAYS_NOTHING = 10
"""What more recipes than this share, such as the argument attn_mask, leads to none of them."""


def names(entry: Entry) -> set[str]:
    """What the entry is called here."""
    return {entry.name, entry.title}


def aliases(entry: Entry) -> Iterator[str]:
    """What it is called elsewhere: models, fields of configurations, arguments, papers by number and by short title."""
    for model in entry.models:
        yield from filter(None, (model.name, model.field))
    for paper in entry.papers:
        yield paper.title.partition(":")[0]
        if paper.arxiv:
            yield from (paper.arxiv, f"arXiv:{paper.arxiv}", f"arXiv {paper.arxiv}")
    yield from argument_names(entry)


def asked() -> dict[str, set[str]]:
    """Every name and alias, and which recipes it is one of; a name of a recipe is asked for as such."""
    entries = catalogue()
    taken = {name.lower() for entry in entries for name in names(entry)}
    found: dict[str, set[str]] = {name: {entry.name} for entry in entries for name in names(entry)}
    for entry in entries:
        for alias in aliases(entry):
            if alias.lower() not in taken:
                found.setdefault(alias, set()).add(entry.name)
    found |= {alias: {name} for alias, name in ALSO.items()}
    return {text: meant for text, meant in found.items() if len(meant) <= SAYS_NOTHING}
