"""By what a recipe is found: what the site's search weighs, and what the filter of the index looks through."""

from __future__ import annotations

from attn_mods import description
from attn_mods.entry import Entry
from docs.generator.fixed_functions import argument_names

PAGE_LEFT_OUT = "search:\n  exclude: true"
"""In the head of a page of numbers, which would come first in every search that has a number in it."""

SECTION_LEFT_OUT = "data-search-exclude"
"""Attribute of the heading of a section of numbers, likewise."""


def names(entry: Entry) -> list[str]:
    """What others call it: models that use it, fields of their configurations, arguments of other libraries, papers.

    Numbers of papers are not among them: most begin with the 2 of "Gemma 2", and the text of the page has them.
    """
    models = [model.name for model in entry.models]
    fields = [model.field for model in entry.models if model.field]
    papers = [paper.title for paper in entry.papers]
    return list(dict.fromkeys([*models, *fields, *argument_names(entry), *papers]))


def searched(entry: Entry) -> str:
    """What the filter looks through, in lower case: all names, tags, traps, and parameters with what they mean."""
    papers = [f"arXiv {paper.arxiv} {paper.where}" if paper.arxiv else paper.where for paper in entry.papers]
    parts = [
        entry.name,
        entry.title,
        entry.summary,
        *papers,
        *names(entry),
        *sorted(entry.tags),
        *(text for parameter in description.parameters(entry).items() for text in parameter),
        *entry.traps,
    ]
    return " ".join(" ".join(parts).replace("``", "").lower().split())
