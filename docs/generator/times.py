"""Tables of times that several pages on performance have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import card_report
from benchmarks.attention.report import Measured, median
from benchmarks.attention.ways import BASELINE, WAYS
from benchmarks.bars import digits
from docs.generator.records import fastest, is_alone
from docs.generator.words import NO_OTHER


def where(here: Sequence[Measured]) -> str:
    """Versions, dates and commands of the runs, folded away."""
    sources = dict.fromkeys(source for each in here for source in each.sources)
    runs = "\n".join(f"    - {source}" for source in sources)
    return f'??? note "Where and with what"\n\n{runs}'


def decision(one: Measured, what: str, times: str) -> str:
    """The fastest of a pass, and what cannot be told from it, with its time."""
    rows = fastest(one, what, times)
    if not rows:
        return ""
    names = ", ".join(f"`{row['backend']}`" for row in rows)
    alone = f" ({NO_OTHER})" if is_alone(one, what, times) else ""
    return f"{names} {digits(median(rows[0][times]))} ms{alone}"


def multiples(first: str, name: Callable[[Measured], str], here: Sequence[Measured], what: str, times: str) -> str:
    """The table of one pass, times as multiples of the fastest in the row; empty if nothing has such times.

    Args:
        first: Title of the first column.
        name: What stands in it.
        here: What was measured, a row each.
        what: The pass.
        times: Which times of a record.
    """
    found = [(each, {row["backend"]: row for row in each.of(what) if row.get(times)}) for each in here]
    ways = [way for way in dict.fromkeys((BASELINE, *WAYS)) if any(way in rows for _, rows in found)]
    lines = []
    for each, rows in found:
        if rows:
            best = min(median(row[times]) for row in rows.values())
            firsts = set() if len(rows) == 1 else {row["backend"] for row in fastest(each, what, times)}
            cells = [_multiple(median(rows[way][times]) / best, way in firsts) if way in rows else "" for way in ways]
            lines.append([name(each), digits(best), *cells])
    return card_report.markdown_table([first, "fastest, ms", *ways], lines) if lines else ""


def _multiple(times: float, is_first: bool) -> str:
    text = f"{times:.2f}" if round(times, 2) < 10 else f"{times:.0f}"
    return f"**{text}**" if is_first else text
