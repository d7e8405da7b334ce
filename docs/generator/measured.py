"""The measured speed of an entry, from committed benchmark records."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import torch

from attn_mods.entry import Entry
from benchmarks.attention.report import TITLES, Measured, Row, median, spread
from benchmarks.bars import digits
from docs.generator.chart import Dot, chart
from docs.generator.records import AS_CALLED, AS_GRAPH, compared_by_card, fastest, length, of_entry

CHARTED = ("forward", "forward_backward")


def measured_speed(entry: Entry) -> str:
    """The section "Measured speed" of an entry's page, as Markdown."""
    found = of_entry(entry.name)
    again = f"To measure it where you are:\n\n```text\npython -m benchmarks run {entry.name}\n```"
    if not found:
        return f"Nothing is measured for this recipe yet. {again}"
    parts = [part for card, of_card in found.items() for part in _card(card, of_card)]
    if any(one.rows[0]["recipe"] == entry.name for of_card in compared_by_card().values() for one in of_card):
        parts.append("On many more sizes: [SDPA or FlashAttention](../performance/sdpa_and_flash.md).")
    parts.append(
        "[How it is measured](../how_measured.md) says what the columns mean. Each run is of the commit that it names; "
        f"what a backend takes may have changed since. {again}"
    )
    return "\n\n".join(parts)


def _card(card: str, of_card: Sequence[Measured]) -> Iterator[str]:
    yield f"### {card}"
    yield "\n".join(f"- {_summary(each)}" for each in of_card)
    stale = _stale(of_card)
    if stale:
        yield stale
    for what in CHARTED:
        dots = _dots(_of_one_size(of_card), what)
        if dots:
            label = f"{TITLES[what]}, milliseconds of each backend at each length; the tables below hold the numbers"
            caption = f"<figcaption>{TITLES[what]}, as called</figcaption>"
            yield f'<figure class="am-figure" tabindex="0">{chart(dots, label)}{caption}</figure>'
    for each in of_card:
        shape = each.rows[0]["shape"]
        one = f"python -m benchmarks run {each.rows[0]['recipe']} --suite standard --length {shape['q_len']}"
        body = "\n\n".join(part for part in (each.source, f"This recipe alone: `{one}`", *each.tables()) if part)
        yield f'??? note "{each.title}"\n\n{textwrap.indent(body, "    ")}'


def _summary(one: Measured) -> str:
    """Which is fastest forward, as called and as a replayed CUDA graph."""
    called, alone = fastest(one, "forward", AS_CALLED), fastest(one, "forward", AS_GRAPH)
    if not called:
        return f"{length(one):,} tokens: nothing computed it."
    sentence = f"{length(one):,} tokens, forward: {_named(called, AS_CALLED)}"
    if not alone:
        return f"{sentence}."
    return f"{sentence} as called; {_named(alone, AS_GRAPH)} as a replayed CUDA graph, without what the host costs."


def _named(rows: Sequence[Row], times: str) -> str:
    """The fastest with its time, and those that cannot be told from it."""
    first, *others = rows
    text = f"`{first['backend']}` {digits(median(first[times]))} ms"
    return f"{text} (not told apart: {', '.join(row['backend'] for row in others)})" if others else text


def _stale(of_card: Sequence[Measured]) -> str:
    """A note where the records are of another torch than the one this site is built with."""
    measured_with = {each.run["environment"]["torch"] for each in of_card if each.run is not None}
    others = sorted(version for version in measured_with if _minor(version) != _minor(torch.__version__))
    if not others:
        return ""
    return f"**Stale?** Measured with torch {', '.join(others)}; this page was made with torch {torch.__version__}."


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _of_one_size(of_card: Sequence[Measured]) -> list[Measured]:
    """Those whose sizes differ by the length alone, of the sizes most were measured at."""
    sizes = [{**each.rows[0]["shape"], "q_len": 0, "kv_len": 0} for each in of_card]
    most = max(sizes, key=sizes.count)
    return [each for each, size in zip(of_card, sizes, strict=True) if size == most]


def _dots(of_card: Sequence[Measured], what: str) -> dict[str, dict[int, Dot]]:
    dots: dict[str, dict[int, Dot]] = {}
    for each in of_card:
        for row in each.of(what):
            if row["status"] == "ok":
                dots.setdefault(row["backend"], {})[length(each)] = _dot(row)
    return dots


def _dot(row: Row) -> Dot:
    return Dot(median(row[AS_CALLED]), *spread(row[AS_CALLED]))
