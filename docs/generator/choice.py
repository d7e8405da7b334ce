"""The page on how far off the choice of "auto" is, from committed tables and the runs that came after them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from attn_mods import tuning
from attn_mods.tuning import Table
from benchmarks import card_report, record
from benchmarks.attention.report import Row
from benchmarks.attention.tune import Regret, regrets

BAR = 0.03

OPENING = """\
`backend="auto"` goes by a table of what was measured on the card, `attn_mods/tuning/<card>.json`; on sizes that it does
not hold, by what the nearest lead one to expect: the device has more to do by the number of products, the host never,
and a call takes as long as the slower of the two. How far off that is shows in runs that came later than those the
table was made from: how much longer the chosen backend took, as called, than the fastest of those measured there."""


def how_good_the_choice_is() -> str:
    """The page: for each card how often the choice was within the bar, and every case."""
    parts = [
        "---\ntitle: How good the choice of auto is\nhide: [toc]\n---",
        "# How good the choice of auto is",
        OPENING,
    ]
    for path in sorted(tuning.FOLDER.glob("*.json")):
        table = tuning.read(path)
        assert table is not None
        parts += _card(table)
    return "\n\n".join(parts) + "\n"


def later_runs(table: Table) -> list[list[Row]]:
    """The committed runs on the card of a table that began after every run it was made from, each with its records."""
    runs = [run for path in record.result_files() for run in _runs(path)]
    of_card = [run for run in runs if run[0]["environment"]["card"] == table.card]
    last = max(run[0]["started_at"] for run in of_card if run[0]["run_id"] in table.runs)
    return [run for run in of_card if run[0]["started_at"] > last and _has_attention(run)]


def _has_attention(run: Sequence[Row]) -> bool:
    return any(row["record"] == "attention" for row in run)


def _card(table: Table) -> Iterator[str]:
    runs = later_runs(table)
    found = [regret for run in runs for regret in regrets(table, run)]
    yield f"## {table.card}"
    yield f"The table: {len(table.rows)} measurements of the runs {', '.join(table.runs)}, torch {table.torch}."
    if not found:
        yield "No run came later."
        return
    sizes = {"sizes in the table": True, "other sizes": False}
    summaries = [
        [words, *_summary([regret for regret in found if regret.is_in_table == is_in_table])]
        for words, is_in_table in sizes.items()
    ]
    yield card_report.markdown_table(["", "cases", f"within {BAR:.0%}", "mean", "worst"], summaries)
    yield "Every case that is further off:"
    further = sorted((regret for regret in found if regret.share > BAR), key=lambda regret: -regret.share)
    yield _table(further)
    commands = "\n".join(f"- run {run[0]['run_id']}: `{run[0]['command']}`" for run in runs)
    yield f"The later runs:\n\n{commands}"
    yield "`python -m benchmarks tune FILES --against LATER` computes the same from files of records."


def _summary(found: Sequence[Regret]) -> list[str]:
    if not found:
        return ["0", "", "", ""]
    shares = [regret.share for regret in found]
    near = sum(share <= BAR for share in shares)
    return [str(len(shares)), str(near), f"{sum(shares) / len(shares):.1%}", f"{max(shares):.1%}"]


def _table(found: Sequence[Regret]) -> str:
    titles = ["case", "pass", "chosen", "fastest", "in the table", "slower by"]
    lines = [
        [
            f"{regret.group.name}, B={regret.group.shape.B} Hq={regret.group.shape.Hq} D={regret.group.shape.head_dim}",
            regret.what.replace("_", " and "),
            f"`{regret.chosen}`",
            f"`{regret.fastest}`",
            "yes" if regret.is_in_table else "no",
            f"{regret.share:.1%}",
        ]
        for regret in found
    ]
    return card_report.markdown_table(titles, lines, names=len(titles) - 1)


def _runs(path: Path) -> Iterator[list[Row]]:
    """The runs of a file: its records from one environment to the next."""
    rows = list(record.read(path))
    numbers = itertools.accumulate(int(row["record"] == "environment") for row in rows)
    grouped = itertools.groupby(zip(numbers, rows, strict=True), key=lambda pair: pair[0])
    return ([row for _, row in group] for _, group in grouped)
