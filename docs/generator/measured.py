"""The measured speed of an entry, from committed benchmark records."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import torch

from attn_mods.entry import Entry
from benchmarks.attention.report import TITLES, Measured, Row, median, spread
from benchmarks.attention.ways import BASELINE
from benchmarks.bars import digits
from docs.generator.chart import Dot, chart
from docs.generator.records import length, of_entry

CHARTED = ("forward", "forward_backward")


def measured_speed(entry: Entry) -> str:
    """The section "Measured speed" of an entry's page, as Markdown."""
    found = of_entry(entry.name)
    again = f"To measure it where you are:\n\n```text\npython -m benchmarks run {entry.name}\n```"
    if not found:
        return f"Nothing is measured for this recipe yet. {again}"
    parts = [part for card, of_card in found.items() for part in _card(card, of_card)]
    parts.append(f"[How it is measured](../how_measured.md) says what the columns mean. {again}")
    return "\n\n".join(parts)


def _card(card: str, of_card: Sequence[Measured]) -> Iterator[str]:
    yield f"### {card}"
    yield " ".join(_summary(each) for each in of_card)
    stale = _stale(of_card)
    if stale:
        yield stale
    for what in CHARTED:
        dots = _dots(of_card, what)
        if dots:
            label = f"{TITLES[what]}, milliseconds of each backend at each length; the tables below hold the numbers"
            caption = f"<figcaption>{TITLES[what]}, as called</figcaption>"
            yield f'<figure class="am-figure">{chart(dots, label)}{caption}</figure>'
    for each in of_card:
        body = "\n\n".join(part for part in (each.source, *each.tables()) if part)
        yield f'??? note "{each.title}"\n\n{textwrap.indent(body, "    ")}'


def _summary(one: Measured) -> str:
    """One sentence on the fastest forward pass."""
    right = [row for row in one.of("forward") if row["status"] == "ok"]
    if not right:
        return f"At {length(one):,} tokens nothing computed it."
    best = min(right, key=lambda row: median(row["rounds_ms"]))
    sentence = (
        f"At {length(one):,} tokens `{best['backend']}` is fastest forward, {digits(median(best['rounds_ms']))} ms"
    )
    by_hand = next((row for row in right if row["backend"] == BASELINE), None)
    if by_hand is None or by_hand is best:
        return f"{sentence}."
    times = median(by_hand["rounds_ms"]) / median(best["rounds_ms"])
    return f"{sentence}, {times:.2f} times as fast as FlexAttention by hand."


def _stale(of_card: Sequence[Measured]) -> str:
    """A note where the records are of another torch than the one this site is built with."""
    measured_with = {each.run["environment"]["torch"] for each in of_card if each.run is not None}
    others = sorted(version for version in measured_with if _minor(version) != _minor(torch.__version__))
    if not others:
        return ""
    return f"Measured with torch {', '.join(others)}; this page was made with torch {torch.__version__}."


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _dots(of_card: Sequence[Measured], what: str) -> dict[str, dict[int, Dot]]:
    dots: dict[str, dict[int, Dot]] = {}
    for each in of_card:
        for row in each.of(what):
            if row["status"] == "ok":
                dots.setdefault(row["backend"], {})[length(each)] = _dot(row)
    return dots


def _dot(row: Row) -> Dot:
    return Dot(median(row["rounds_ms"]), *spread(row["rounds_ms"]))
