"""One recipe on one shape, of SDPA beside the flash kernels: its names, times and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.attention.cases import Shape
from benchmarks.attention.report import Measured, Row, median
from docs.generator import words

OWN_CHOICE = "sdpa_default"


@dataclass(frozen=True)
class Comparison:
    """What was measured on one card.

    Attributes:
        card: Its name.
        measured: The records.
    """

    card: str
    measured: Measured

    @property
    def recipe(self) -> str:
        """The recipe."""
        return str(self.measured.rows[0]["recipe"])

    @property
    def shape(self) -> Shape:
        """The sizes."""
        return Shape(**self.measured.rows[0]["shape"])

    @property
    def tokens(self) -> str:
        """Lengths and batch size."""
        return words.tokens(self.shape)

    @property
    def heads(self) -> str:
        """The recipe and all sizes but those."""
        return f"{self.recipe}, {words.heads(self.shape)}"

    @property
    def anchor(self) -> str:
        """What the heading of its table is linked by."""
        card = "-".join(self.card.lower().split())
        shape = self.shape
        return f"{card}-{self.recipe}-{shape.Hq}-{shape.Hkv}-{shape.head_dim}-{shape.dtype}"

    @property
    def link(self) -> str:
        """Its sizes, with a link to its table."""
        return f"[{self.heads}, {self.tokens}](#{self.anchor})"

    def rows(self, what: str) -> dict[str, Row]:
        """The records of a pass by way."""
        return {str(row["backend"]): row for row in self.measured.of(what)}

    def times(self, what: str, times: str) -> dict[str, float]:
        """Median milliseconds of a pass by way, where it was timed."""
        return {way: median(row[times]) for way, row in self.rows(what).items() if row.get(times)}

    def peaks(self, what: str) -> dict[str, int]:
        """Bytes of a pass beyond its inputs by way, where it was timed."""
        return {way: row["peak_bytes"] for way, row in self.rows(what).items() if row["status"] == "ok"}

    def own_kernel(self) -> str | None:
        """The kernel that SDPA takes by itself; None if that was not measured."""
        rows = (row for row in self.measured.rows if row["backend"] == OWN_CHOICE and row["status"] == "ok")
        return next((str(row["kernel"]) for row in rows), None)


def speedups(
    here: Sequence[Comparison], what: str, times: str, ways: Sequence[str], others: Sequence[str]
) -> list[tuple[float, Comparison]]:
    """How many times as fast the fastest of some ways is as the fastest of others, where both were timed."""
    found = []
    for one in here:
        timed = one.times(what, times)
        mine, theirs = ([timed[way] for way in some if way in timed] for some in (ways, others))
        if mine and theirs:
            found.append((min(theirs) / min(mine), one))
    return found
