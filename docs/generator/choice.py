"""The page on how far off the choice of "auto" is, from committed tables and the runs they are of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from attn_mods import tuning
from attn_mods.tuning import Table
from benchmarks import card_report
from benchmarks.attention.report import Row
from benchmarks.attention.tune import (
    NOT_MEASURED,
    Regret,
    regrets,
    regrets_without_own_recipe,
    regrets_without_own_sizes,
    table_of,
)
from docs.generator.records import runs
from docs.generator.search import SECTION_LEFT_OUT
from docs.generator.words import heads, passed, tokens, unusual

BAR = 0.03
NONE = "None."

OPENING = """\
`backend="auto"` goes by a table of measurements on the same card, `attn_mods/tuning/<card>.json`, and takes the backend
that is expected to be fastest. A call takes as long as the longer of two times, the card's and the host's; half of the
card's is added, because the host's varies by chance, from group to group of one run too. So where `flex`'s host time
was above its median, all host times of that group are scaled down by as much; and none counts for more than the call
took. For sizes that the table does not hold, times are estimated from the nearest that it does hold, for float16 in
bfloat16 too: the card's is taken to grow with the number of products to compute, the host's to stay the same. A recipe
that the table does not hold, such as a rule of your own, goes by the others of its kind, masks or scores, on the
nearest sizes that enough of them were measured on: by the median, over those, of each backend's time as a multiple of
`flex`'s.

How good the choice is shows in three ways: each run is chosen for by a table of the runs before it, as far as those are
among the runs that the table of today is made from; and in these, each size, or each recipe, is taken out of the table
in turn and chosen for by what is left. Full and causal, for which every kernel has an argument, are not taken out as
recipes, and say nothing of others. Nor is a case counted whose run asked one backend, or has a time of the chosen one
alone. Given is how much longer the chosen backend took than the fastest of all backends of `attention` in the same run.
Times are *as called*: what a program gets that queues its calls from Python, the host's time included. The first runs
had little before them: what no table held then went by a fixed order."""

FITTED = """\
These rules were chosen with most of these figures at hand: the added half, the scaled host times, that bfloat16 stands
in for float16, and how others of its kind stand in for a recipe. So the figures show how well the rules fit, more than
how well they foretell."""


def how_good_the_choice_is() -> str:
    """The page: for each card how often the choice was within the bar, and every case that was not."""
    parts = ["---\ntitle: How good the choice of auto is\nhide: [toc]\n---", "# How good the choice of auto is"]
    parts += [OPENING, FITTED]
    for path in sorted(tuning.FOLDER.glob("*.json")):
        table = tuning.read(path)
        assert table is not None
        parts += _card(table)
    return "\n\n".join(parts) + "\n"


@functools.cache
def by_earlier_runs(table: Table) -> Sequence[tuple[Row, Sequence[Regret]]]:
    """Each committed run on a table's card, with its cases as the table of the runs before it would have chosen.

    Of those before it the ones that the table is made from count, and the first of all has none.
    """
    of_card = sorted(
        (run for run in runs() if run[0]["environment"]["card"] == table.card),
        key=lambda run: str(run[0]["started_at"]),
    )
    found = []
    for run in of_card:
        earlier = [
            row
            for other in of_card
            if other[0]["run_id"] in table.runs and other[0]["started_at"] < run[0]["started_at"]
            for row in other
        ]
        judged = list(regrets(table_of(earlier), run)) if earlier else []
        found += [(run[0], judged)] if judged else []
    return found


def foretold(table: Table, without: Callable[[Table, Iterable[Row]], Iterator[Regret]]) -> list[Regret]:
    """For each case of the runs that a table was made from the choice of the table without something of that case."""
    made_from = [run for run in runs() if run[0]["run_id"] in table.runs]
    return [regret for run in made_from for regret in without(table, run)]


def _card(table: Table) -> Iterator[str]:
    yield f"## {table.card} {{ {SECTION_LEFT_OUT} }}"
    yield f"The table: {len(table.rows)} measurements, torch {table.torch}, of the runs {', '.join(table.runs)}."
    earlier = by_earlier_runs(table)
    found = [regret for _, its_own in earlier for regret in its_own]
    without_sizes, without_recipe = (
        foretold(table, without) for without in (regrets_without_own_sizes, regrets_without_own_recipe)
    )
    there, other = ([each for each in found if each.is_in_table is held] for held in (True, False))
    rows = [
        ["each run, by the runs before it: sizes that they have", *_summary(there)],
        ["each run, by the runs before it: other sizes", *_summary(other)],
        ["each size, without it in the table", *_summary(without_sizes)],
        ["each recipe, without it in the table", *_summary(without_recipe)],
    ]
    titles = ["", "cases", f"within {BAR:.0%}", "further off", "failed", NOT_MEASURED, "mean", "worst"]
    yield card_report.markdown_table(titles, rows)
    yield "Every case, by the runs before its own, that is not within that:"
    yield _table(found) or NONE
    yield "Every case, without its sizes in the table, that is not within that:"
    yield _table(without_sizes, says_where=False) or NONE
    yield "Every case, without its recipe in the table, that is not within that:"
    yield _table(without_recipe, says_where=False) or NONE
    listed = "\n".join(f"- {_judged(run, its_own)}" for run, its_own in earlier)
    yield f"The runs that were judged by those before them:\n\n{listed}" if earlier else NONE


def _judged(run: Row, its_own: Sequence[Regret]) -> str:
    near = sum(regret.share <= BAR for regret in its_own)
    unmeasured = sum(regret.problem == NOT_MEASURED for regret in its_own)
    counted = f"{near} of {len(its_own) - unmeasured} cases within {BAR:.0%}"
    if unmeasured:
        counted += f", {unmeasured} {NOT_MEASURED}"
    return f"run {run['run_id']}, {run['started_at']}, {counted}: `{run['command']}`"


def _summary(found: Sequence[Regret]) -> list[str]:
    shares = [regret.share for regret in found if regret.problem is None]
    near = sum(share <= BAR for share in shares)
    unmeasured = sum(regret.problem == NOT_MEASURED for regret in found)
    counts = [len(found), near, len(shares) - near, len(found) - len(shares) - unmeasured, unmeasured]
    figures = [f"{sum(shares) / len(shares):.1%}", f"{max(shares):.1%}"] if shares else ["", ""]
    return [*map(str, counts), *figures]


def _table(found: Sequence[Regret], says_where: bool = True) -> str:
    """The cases that are not within the bar, the worst first; nothing if there is none.

    Args:
        found: All cases.
        says_where: Whether a column says which sizes the table had.
    """
    found = sorted((regret for regret in found if regret.share > BAR), key=lambda regret: -regret.share)
    if not found:
        return ""
    where = ["in the table"] if says_where else []
    titles = ["recipe", "sizes", "pass", "chosen", "fastest", *where, "slower by"]
    lines = [
        [
            ", ".join(filter(None, (regret.group.entry, unusual(regret.group.case)))),
            f"{tokens(regret.group.shape)} {heads(regret.group.shape)}",
            passed(regret.what),
            f"`{regret.chosen}`",
            f"`{regret.fastest}`",
            *(["yes" if regret.is_in_table else "no"] if says_where else []),
            f"{regret.share:.1%}" if regret.problem is None else regret.problem,
        ]
        for regret in found
    ]
    return card_report.markdown_table(titles, lines, names=len(titles) - 1)
