"""Look entries up by name: all of masks.ALL and scores.ALL."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from attn_mods import checks, masks, scores
from attn_mods.entry import Entry, Kind


def _entries() -> dict[str, Entry]:
    listed: Iterable[Any] = (*masks.ALL, *scores.ALL)
    entries = [item if isinstance(item, Entry) else item.entry for item in listed]
    return {entry.name: entry for entry in entries}


def names(kind: Kind | None = None, tag: str | None = None) -> list[str]:
    """Names of all entries, in the order of the catalogue.

    Args:
        kind: Only "mask", "score" or "model" entries.
        tag: Only entries with this tag.

    Raises:
        ValueError: A kind or tag that no entry has.
        TypeError: A kind or tag that is no text.
    """
    entries = _entries().values()
    _check_choice("kind", kind, {"mask", "score", "model"})
    _check_choice("tag", tag, {word for entry in entries for word in entry.tags})
    return [
        entry.name for entry in entries if (kind is None or entry.kind == kind) and (tag is None or tag in entry.tags)
    ]


def info(name: str) -> Entry:
    """The entry of that name.

    Raises:
        KeyError: No such entry; the message names near misses.
        TypeError: A name that is no text.
    """
    checks.text("attn_mods", "the name of an entry", name, "pass one of attn_mods.names()")
    entries = _entries()
    if name not in entries:
        near = checks.near_misses(name, tuple(entries), 3)
        remedy = f"did you mean {near}?" if near else "see attn_mods.names() for all of them"
        raise UnknownEntryError(f"attn_mods: there is no entry {name!r}; {remedy}")
    return entries[name]


class UnknownEntryError(KeyError):
    """A name the catalogue does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


def get(name: str, **parameters: Any) -> Any:
    """The mask or score of that name with these parameters; for a "model" entry a list of Recipes, one a layer.

    Raises:
        KeyError: No such entry.
        TypeError: A name that is no text, parameters the entry does not have.
    """
    entry = info(name)
    if entry.build is None:
        raise TypeError(f"{name}: the entry cannot be built from parameters")
    signature = inspect.signature(entry.build)
    try:
        signature.bind(**parameters)
    except TypeError as error:
        remedy = f"see attn_mods.info({name!r}) and the docstring"
        got = ", ".join(parameters) or "none"
        message = f"{name}: the parameters are {', '.join(signature.parameters) or 'none'}, got {got}; {remedy}."
        raise TypeError(message) from error
    return entry.build(**parameters)


def find(text: str) -> list[str]:
    """Names of the entries whose name, title, summary, papers, models or tags contain ``text``, case ignored.

    Raises:
        TypeError: Something else than a text.
    """
    checks.text("attn_mods", "what is searched for", text, "pass a word, such as a model's name or an arXiv number")
    return [entry.name for entry in _entries().values() if text.lower() in _searched(entry)]


def _searched(entry: Entry) -> str:
    papers = [f"{paper.title} {paper.arxiv or ''}" for paper in entry.papers]
    models = [f"{model.name} {model.field}" for model in entry.models]
    return " ".join([entry.name, entry.title, entry.summary, *papers, *models, *sorted(entry.tags)]).lower()


def _check_choice(what: str, value: str | None, choices: set[str]) -> None:
    if value is None:
        return
    every = ", ".join(sorted(choices))
    checks.text("attn_mods", f"the {what} of an entry", value, f"use one of {every}")
    if value not in choices:
        near = checks.near_misses(value, tuple(sorted(choices)), 2)
        remedy = f"did you mean {near}?" if near else f"use one of {every}"
        raise ValueError(f"attn_mods: no entry has the {what} {value!r}; {remedy}")
