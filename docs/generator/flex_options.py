"""What options of the flex kernel do to its time, from the committed runs that measured them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import card_report
from benchmarks.attention.cases import Shape
from benchmarks.attention.report import Measured, Row, measured, median
from benchmarks.attention.ways import TUNED
from benchmarks.bars import digits
from docs.generator.records import runs
from docs.generator.refused import as_at_hand
from docs.generator.words import AS_GRAPH, heads, passed, tokens

FLEX = "flex"
TIMED = "ok"


def flex_options() -> str:
    """The section: a row for each recipe, size and pass that was measured with an option and without; none if none."""
    rows = [row for run in runs() for one in measured(run) if _has_options(one) for row in _rows(as_at_hand(one))]
    if not rows:
        return ""
    named = " and ".join(f"`{way.name}` with {_said(way.options)}" for way in TUNED)
    titles = ["recipe", "sizes", "pass", f"{FLEX}, ms", *(way.name for way in TUNED)]
    return (
        "## Options of the flex kernel\n\n"
        f'`{FLEX}` is `attention(..., backend="{FLEX}")`, {named} as its `kernel_options`. Device time, as a multiple '
        "of that without an option in the same run. An option that gives a score's rule other numbers is refused "
        f"where there is one.\n\n{card_report.markdown_table(titles, rows, names=3)}"
    )


def _has_options(one: Measured) -> bool:
    return any(row["backend"] in {way.name for way in TUNED} for row in one.rows)


def _said(options: dict[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in options)


def _rows(one: Measured) -> Iterator[list[str]]:
    shape = Shape(**one.rows[0]["shape"])
    for what in dict.fromkeys(row["what"] for row in one.rows):
        found = {row["backend"]: row for row in one.of(what)}
        without = found.get(FLEX, {}).get(AS_GRAPH)
        if without and any(way.name in found for way in TUNED):
            cells = [_cell(found.get(way.name), median(without)) for way in TUNED]
            sizes = f"{tokens(shape)} {heads(shape)}"
            yield [str(one.rows[0]["recipe"]), sizes, passed(what), digits(median(without)), *cells]


def _cell(row: Row | None, without_ms: float) -> str:
    if row is None:
        return ""
    if row["status"] != TIMED:
        return str(row["status"])
    return f"{median(row[AS_GRAPH]) / without_ms:.2f}" if row.get(AS_GRAPH) else ""
