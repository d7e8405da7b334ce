"""The page on building BlockMasks on cards, from committed benchmark records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import card_report, record
from benchmarks.attention.report import Row
from docs.generator.search import PAGE_LEFT_OUT

NOTHING = " | not measured | not measured |"
"""How a row of a table of bars ends of which the run measured nothing and says no reason."""


def block_masks() -> str:
    """The page as Markdown."""
    runs = [list(record.read(path)) for path in record.result_files()]
    of_cards = [rows for rows in runs if any(row["record"] == "cell" for row in rows) and _card_of(rows) is not None]
    largest_first = sorted(of_cards, key=lambda rows: "principal" not in _masks_of(rows))
    opening = (
        "How long it takes to build a BlockMask on a card, against PyTorch's own `create_block_mask`, eager and "
        "compiled, with parameter values that are new in every call. The first run is of the three masks that bars are "
        "set for: causal, a window, packed documents; the others are of five more rules and of greater lengths. At the "
        "end of each run stands what it is held to, and by how much that is missed."
    )
    head = f"---\ntitle: Building BlockMasks\n{PAGE_LEFT_OUT}\n---\n\n# Building BlockMasks"
    return f"{head}\n\n{opening}\n\n{without_the_unmeasured(card_report.page(largest_first))}"


def without_the_unmeasured(report: str) -> str:
    """A report in which rows without any figure are left out of the tables of bars, and are named below each."""
    return "\n\n".join(part for block in report.split("\n\n") for part in _shortened(block))


def _shortened(block: str) -> Iterator[str]:
    lines = block.splitlines()
    left_out = [line for line in lines if line.endswith(NOTHING)]
    if not left_out:
        yield block
        return
    head, rule, *rows = (line for line in lines if line not in left_out)
    if rows:
        yield "\n".join([head, rule, *rows])
    yield f"Not measured in this run: {_named([line.split(' | ')[0].removeprefix('| ') for line in left_out])}."


def _named(subjects: Sequence[str]) -> str:
    """The subjects of bars, those together that lack the same quantities."""
    quantities: dict[str, list[str]] = {}
    for subject in subjects:
        place, _, quantity = subject.rpartition(": ")
        quantities.setdefault(place, []).append(f"*{quantity}*")
    places: dict[str, list[str]] = {}
    for place, of_place in quantities.items():
        places.setdefault(" and ".join(of_place), []).append(place)
    lacking = [f"{what} of {'; '.join(where)}" if any(where) else what for what, where in places.items()]
    return "; and ".join(lacking)


def _masks_of(rows: Sequence[Row]) -> str:
    """Whether the run is of the principal masks or of others."""
    return "principal" if any(row.get("recipe") == "causal" for row in rows) else "others"


def _card_of(rows: Sequence[Row]) -> str | None:
    card: str | None = next(row["environment"]["card"] for row in rows if row["record"] == "environment")
    return card
