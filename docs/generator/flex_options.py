"""What options of the flex kernel do to its time, from the committed runs that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks import card_report
from benchmarks.attention.cases import Shape
from benchmarks.attention.report import Measured, Row, measured, median
from benchmarks.attention.ways import TUNED
from benchmarks.bars import digits
from docs.generator.records import runs
from docs.generator.refused import as_at_hand
from docs.generator.words import AS_CALLED, AS_GRAPH, HOW, heads, passed, tokens

FLEX = "flex"
TIMED = "ok"


def flex_options() -> str:
    """The section: a row for each recipe, size and pass that was measured with an option and without; none if none."""
    compared = [each for run in runs() for one in measured(run) for each in _compared(as_at_hand(one))]
    if not compared:
        return ""
    compared.sort(key=lambda each: (each.shape.kv_len, each.recipe, each.what))
    named = " and ".join(f"`{way.name}` with {_said(way.options)}" for way in TUNED)
    titles = ["recipe", "sizes", "pass", f"{FLEX}, ms", *(way.name for way in TUNED)]
    return (
        "## Options of the flex kernel\n\n"
        f'`{FLEX}` is `attention(..., backend="{FLEX}")`, {named} as its `kernel_options`. Device time, as a multiple '
        "of that without an option in the same run; in brackets the same as called. An option that gives a score's "
        f"rule other numbers is refused where there is one. {' '.join(_summary(way.name, compared) for way in TUNED)} "
        "So none is on unless it is asked for.\n\n"
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


def _compared(one: Measured) -> Iterator[_Compared]:
    for what in dict.fromkeys(row["what"] for row in one.rows):
        found = {row["backend"]: row for row in one.of(what)}
        if found.get(FLEX, {}).get(AS_GRAPH) and any(way.name in found for way in TUNED):
            yield _Compared(str(one.rows[0]["recipe"]), Shape(**one.rows[0]["shape"]), what, found)


def _summary(way: str, compared: Iterable[_Compared]) -> str:
    """How often the option was of use."""
    found = [shares for each in compared if (shares := each.shares(way))]
    device, called = (sum(shares[place] < 1 for shares in found) for place in (0, 1))
    return f"`{way}` took less device time in {device} of {len(found)} rows, as called in {called}."
