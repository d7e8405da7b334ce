"""The measured speed of an entry, from committed benchmark records."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import torch

from attn_mods.entry import Entry
from benchmarks.attention.cases import is_of_this_file
from benchmarks.attention.report import TITLES, Measured, median, spread
from benchmarks.bars import digits
from docs.generator.chart import Dot, chart
from docs.generator.prose import bulleted
from docs.generator.records import case, compared_by_card, fastest, is_alone, length, of_entry
from docs.generator.search import SECTION_LEFT_OUT
from docs.generator.words import AS_CALLED, AS_GRAPH, FORWARD, HOW, HOW_EXPLAINED, NO_OTHER, PASSES, passed


def measured_speed(entry: Entry) -> str:
    """The section "Measured speed" of an entry's page, as Markdown."""
    found = of_entry(entry.name)
    again = f"To measure it where you are:\n\n```text\npython -m benchmarks run {entry.name}\n```"
    if not found:
        return f"Nothing is measured for this recipe yet. {again}"
    parts = ["Measured under a causal mask."] if entry.kind == "score" else []
    parts += [part for card, of_card in found.items() for part in _card(card, of_card)]
    if any(one.rows[0]["recipe"] == entry.name for of_card in compared_by_card().values() for one in of_card):
        parts.append("On many more sizes: [SDPA or FlashAttention](../performance/sdpa_and_flash.md).")
    parts.append(
        f"{HOW_EXPLAINED} In the tables these are the columns *graph* and *ms*; rows stand in the order of *ms*, and "
        "the verdict is by it. [How it is measured](../how_measured.md) says what the other columns mean. Each run is "
        f"of the commit that it names. {again}"
    )
    return "\n\n".join(parts)


def _card(card: str, of_card: Sequence[Measured]) -> Iterator[str]:
    yield f"### {card} {{ {SECTION_LEFT_OUT} }}"
    yield bulleted(_summary(each) for each in of_card)
    note = stale(of_card)
    if note:
        yield note
    times = _charted(of_card)
    for what in PASSES:
        dots = _dots(_of_one_size(of_card), what, times)
        if dots:
            title = f"{TITLES[what]}, {HOW[times]}"
            label = f"{title}, milliseconds of each backend at each length; the tables below hold the numbers"
            caption = f"<figcaption>{title}</figcaption>"
            yield f'<figure class="am-figure" tabindex="0">{chart(dots, label)}{caption}</figure>'
    for each in of_card:
        shape = each.rows[0]["shape"]
        one = f"python -m benchmarks run {each.rows[0]['recipe']} --suite standard --length {shape['q_len']}"
        one += f" --case {case(each)}" if case(each) else ""
        body = "\n\n".join((*each.told_sources(), f"This recipe alone: `{one}`", *each.tables()))
        yield f'??? note "{each.title}"\n\n{textwrap.indent(body, "    ")}'


def _summary(one: Measured) -> str:
    """Which is fastest forward: by device time where that was measured, and as called."""
    named = [f"{name} {how}" for times, how in HOW.items() if (name := _named(one, times))]
    other = f", case {case(one)}" if case(one) else ""
    return f"{length(one):,} tokens{other}, {passed(FORWARD)}: {'; '.join(named) or 'nothing computed it'}."


def _named(one: Measured, times: str) -> str:
    """The fastest with its time, and those that cannot be told from it; nothing if nothing has such a time."""
    rows = fastest(one, FORWARD, times)
    if not rows:
        return ""
    first, *others = rows
    text = f"`{first['backend']}` {digits(median(first[times]))} ms"
    if is_alone(one, FORWARD, times):
        return f"{text} ({NO_OTHER})"
    return f"{text} (not told apart: {', '.join(row['backend'] for row in others)})" if others else text


def stale(of_card: Sequence[Measured]) -> str:
    """A note where the records are of another torch, or of another file of the recipe, than what is at hand."""
    reasons = [reason for reason in (_other_torch(of_card), _other_file(of_card)) if reason]
    return f"**Stale?** {' '.join(reasons)}" if reasons else ""


def _other_torch(of_card: Sequence[Measured]) -> str:
    measured_with = {run["environment"]["torch"] for each in of_card for run in each.runs}
    others = sorted(version for version in measured_with if _minor(version) != _minor(torch.__version__))
    if not others:
        return ""
    return f"Measured with torch {', '.join(others)}; this page was made with torch {torch.__version__}."


def _other_file(of_card: Sequence[Measured]) -> str:
    changed = [f"{length(each):,}" for each in of_card if not is_of_this_file(each.rows[0])]
    return f"The file of the recipe has changed since the runs at {', '.join(changed)} tokens." if changed else ""


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _of_one_size(of_card: Sequence[Measured]) -> list[Measured]:
    """Those whose sizes differ by the length alone, of the sizes and parameters that most were measured at."""
    sizes = [(case(each), {**each.rows[0]["shape"], "q_len": 0, "kv_len": 0}) for each in of_card]
    most = max(sizes, key=sizes.count)
    return [each for each, size in zip(of_card, sizes, strict=True) if size == most]


def _charted(of_card: Sequence[Measured]) -> str:
    """Which times are drawn: those of the device; as called where there are none, as on a CPU."""
    return AS_GRAPH if any(row.get(AS_GRAPH) for each in of_card for row in each.rows) else AS_CALLED


def _dots(of_card: Sequence[Measured], what: str, times: str) -> dict[str, dict[int, Dot]]:
    dots: dict[str, dict[int, Dot]] = {}
    for each in of_card:
        for row in each.of(what):
            if row.get(times):
                dots.setdefault(row["backend"], {})[length(each)] = Dot(median(row[times]), *spread(row[times]))
    return dots
