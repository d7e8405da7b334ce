"""What a committed run timed and the code at hand refuses, and the reverse: backends come to take less, or more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attn_mods.backends.structure_options import options_on
from benchmarks.attention.cases import Group, Shape
from benchmarks.attention.refusals import refusals
from benchmarks.attention.report import Measured, Row, median
from benchmarks.attention.ways import WAYS, OfBackend
from benchmarks.bars import digits
from docs.generator.words import HOW

REFUSED = "refused"
"""The status that a record gets here in place of "ok"."""


def as_at_hand(one: Measured) -> Measured:
    """The same as the code at hand would have it: what it refuses has no time, what it takes by now is said to be."""
    on_card = any(run["environment"]["card"] is not None for run in one.runs)
    device = "cuda" if on_card else "cpu"
    return replace(one, rows=tuple(_as_at_hand(row, device) for row in one.rows))


def _as_at_hand(row: Row, device: str) -> Row:
    if row["status"] == "unsupported" and _takes(row, device):
        return row | {"message": f"{row['message']}. The code at hand takes it, which this run did not measure"}
    reason = refusal(row, device) if row["status"] in ("ok", "wrong") else None
    if reason is None:
        return row
    kept = {name: value for name, value in row.items() if name not in HOW}
    found = " and ".join(_times(row)) or f"a wrong result ({row['message']})"
    return kept | {"status": REFUSED, "message": f"{reason}. That is what the code at hand says; this run has {found}"}


def _times(row: Row) -> Iterator[str]:
    for times, how in HOW.items():
        if row.get(times):
            yield f"{digits(median(row[times]))} ms {how}"


def _takes(row: Row, device: str) -> bool:
    return isinstance(WAYS.get(row["backend"]), OfBackend) and refusal(row, device) is None


def refusal(row: Row, device: str) -> str | None:
    """Why the backend of a record, as it is now, does not compute what was measured; None if it does."""
    way = WAYS.get(row["backend"])
    if not isinstance(way, OfBackend):
        return None
    group = Group(row["recipe"], row["case"], Shape(**row["shape"]))
    training, options = row["what"] != "forward", options_on(way.options)
    return refusals(group, device, training, options).get(way.backend)
