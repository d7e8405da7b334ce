"""What options of the flex kernel do to its time, from the committed runs that measured them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import card_report
from benchmarks.attention.cases import Shape
from benchmarks.attention.report import Measured, Row, measured, median
from benchmarks.attention.ways import TUNED
from benchmarks.bars import digits
from docs.generator.records import runs
from docs.generator.refused import as_at_hand
from docs.generator.words import ALIKE, AS_CALLED, AS_GRAPH, HOW, PASSES, heads, passed, tokens

FLEX = "flex"
TIMED = "ok"


def flex_options() -> str:
    """The section: a row for each recipe, size and pass that was measured with an option and without; none if none."""
    compared = sorted(_latest(), key=lambda each: (each.what, each.shape.kv_len, each.recipe))
    if not compared:
        return ""
    named = " and ".join(f"`{way.name}` with {_said(way.options)}" for way in TUNED)
    titles = ["recipe", "sizes", "pass", f"{FLEX}, ms", *(way.name for way in TUNED)]
    return (
        "## Options of the flex kernel\n\n"
        f'`{FLEX}` is `attention(..., backend="{FLEX}")`, {named} as its `kernel_options`. Device time, as a multiple '
        "of that without an option in the same run; in brackets the same as called. An option that gives a score's "
        f"rule other numbers is refused where there is one. {' '.join(_summaries(compared))} No option is on unless "
        "it is asked for.\n\n"
        f"{card_report.markdown_table(titles, [each.cells() for each in compared], names=3)}"
    )


def _said(options: dict[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in options)


@dataclass(frozen=True)
class _Compared:
    """One recipe, size and pass of a run.

    Attributes:
        recipe: The entry's name.
        shape: The sizes.
        what: The pass.
        rows: The records, by way.
    """

    recipe: str
    shape: Shape
    what: str
    rows: dict[str, Row]

    def shares(self, way: str) -> tuple[float, float] | None:
        """A way's device time and time as called, as multiples of those without an option; None if one is missing."""
        row, without = self.rows.get(way, {}), self.rows[FLEX]
        if row.get("status") != TIMED or not all(each.get(times) for each in (row, without) for times in HOW):
            return None
        return median(row[AS_GRAPH]) / median(without[AS_GRAPH]), median(row[AS_CALLED]) / median(without[AS_CALLED])

    def options(self) -> int:
        """How many of the options have a record."""
        return sum(way.name in self.rows for way in TUNED)

    def cells(self) -> list[str]:
        """The line of the table."""
        without = digits(median(self.rows[FLEX][AS_GRAPH]))
        sizes = f"{tokens(self.shape)} {heads(self.shape)}"
        return [self.recipe, sizes, passed(self.what), without, *(self._cell(way.name) for way in TUNED)]

    def _cell(self, way: str) -> str:
        row = self.rows.get(way)
        if row is not None and row["status"] != TIMED:
            return str(row["status"])
        shares = self.shares(way)
        return "" if shares is None else f"{shares[0]:.2f} ({shares[1]:.2f})"


def _latest() -> list[_Compared]:
    """What was measured with an option and without; where several runs did, by the last with most options."""
    by_start = sorted(runs(), key=lambda run: str(run[0]["started_at"]))
    found: dict[tuple[str, Shape, str], _Compared] = {}
    for run in by_start:
        for each in (each for one in measured(run) for each in _compared(as_at_hand(one))):
            key = each.recipe, each.shape, each.what
            before = found.get(key)
            found[key] = each if before is None or each.options() >= before.options() else before
    return list(found.values())


def _compared(one: Measured) -> Iterator[_Compared]:
    for what in dict.fromkeys(row["what"] for row in one.rows):
        found = {row["backend"]: row for row in one.of(what)}
        if found.get(FLEX, {}).get(AS_GRAPH) and any(way.name in found for way in TUNED):
            yield _Compared(str(one.rows[0]["recipe"]), Shape(**one.rows[0]["shape"]), what, found)


def _summaries(compared: Sequence[_Compared]) -> Iterator[str]:
    """How often an option was of use in each pass."""
    for way, what in itertools.product((way.name for way in TUNED), PASSES):
        found = [shares for each in compared if each.what == what and (shares := each.shares(way))]
        if found:
            device, called = (sum(shares[place] < 1 - ALIKE for shares in found) for place in (0, 1))
            gained = f"more than {ALIKE:.0%} of the device time in {device} of {len(found)} rows, as called in {called}"
            yield f"{passed(what).capitalize()}, `{way}` saved {gained}."
