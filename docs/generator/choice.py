"""The page on how far off the choice of "auto" is, from committed tables and the runs that came after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attn_mods import tuning
from attn_mods.tuning import Table
from benchmarks import card_report
from benchmarks.attention.report import Row
from benchmarks.attention.tune import NOT_MEASURED, Regret, regrets
from docs.generator.comparison import tokens
from docs.generator.records import runs

BAR = 0.03

OPENING = """\
`backend="auto"` goes by a table of what was measured on the card, `attn_mods/tuning/<card>.json`. On sizes that it does
not hold it goes by the nearest: the device has more to do by the number of products, the host never, and a call takes
as long as the slower of the two; half of the device's time is added, since host times differ by chance. How far off
that is shows in runs that came later than those the table was made from: how much longer the chosen backend took, as
called, than the fastest of the backends of `attention` measured there."""

FITTED = """\
The rule for other sizes, the half in particular, was chosen with the later runs of 2026-11-28 at hand: for those it is
no forecast."""


def how_good_the_choice_is() -> str:
    """The page: for each card how often the choice was within the bar, and every case that was not."""
    parts = ["---\ntitle: How good the choice of auto is\nhide: [toc]\n---", "# How good the choice of auto is"]
    parts += [OPENING, FITTED]
    for path in sorted(tuning.FOLDER.glob("*.json")):
        table = tuning.read(path)
        assert table is not None
        parts += _card(table)
    return "\n\n".join(parts) + "\n"


def later_runs(table: Table) -> list[list[Row]]:
    """The committed runs on the card of a table that began after every run it was made from, each with its records."""
    of_card = [run for run in runs() if run[0]["environment"]["card"] == table.card]
    made_from = [run[0]["started_at"] for run in of_card if run[0]["run_id"] in table.runs]
    if not made_from:
        return []
    return [run for run in of_card if run[0]["started_at"] > max(made_from) and _has_attention(run)]


def _has_attention(run: Sequence[Row]) -> bool:
    return any(row["record"] == "attention" for row in run)


def _card(table: Table) -> Iterator[str]:
    later = later_runs(table)
    found = [regret for run in later for regret in regrets(table, run)]
    yield f"## {table.card}"
    yield f"The table: {len(table.rows)} measurements, torch {table.torch}, of the runs {', '.join(table.runs)}."
    if not found:
        yield "No run came later."
        return
    titles = ["", "cases", f"within {BAR:.0%}", "further off", "failed", NOT_MEASURED, "mean", "worst"]
    summaries = [
        [words, *_summary([regret for regret in found if regret.is_in_table == is_in_table])]
        for words, is_in_table in (("sizes in the table", True), ("other sizes", False))
    ]
    yield card_report.markdown_table(titles, summaries)
    yield "Every case that is not within that:"
    yield _table(sorted((regret for regret in found if regret.share > BAR), key=lambda regret: -regret.share))
    listed = "\n".join(f"- run {run[0]['run_id']}, {run[0]['started_at']}: `{run[0]['command']}`" for run in later)
    yield f"The later runs:\n\n{listed}"


def _summary(found: Sequence[Regret]) -> list[str]:
    shares = [regret.share for regret in found if regret.problem is None]
    near = sum(share <= BAR for share in shares)
    unmeasured = sum(regret.problem == NOT_MEASURED for regret in found)
    counts = [len(found), near, len(shares) - near, len(found) - len(shares) - unmeasured, unmeasured]
    figures = [f"{sum(shares) / len(shares):.1%}", f"{max(shares):.1%}"] if shares else ["", ""]
    return [*map(str, counts), *figures]


def _table(found: Sequence[Regret]) -> str:
    titles = ["recipe", "sizes", "pass", "chosen", "fastest", "in the table", "slower by"]
    lines = [
        [
            regret.group.entry,
            f"{tokens(regret.group.shape)} Hq={regret.group.shape.Hq} D={regret.group.shape.head_dim}",
            "forward" if regret.what == tuning.FORWARD else "training step",
            f"`{regret.chosen}`",
            f"`{regret.fastest}`",
            "yes" if regret.is_in_table else "no",
            f"{regret.share:.1%}" if regret.problem is None else regret.problem,
        ]
        for regret in found
    ]
    return card_report.markdown_table(titles, lines, names=len(titles) - 1)
