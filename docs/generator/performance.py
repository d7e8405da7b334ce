"""The pages on performance, from committed benchmark records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import card_report, record
from benchmarks.attention.report import EXPLANATION, TITLES, Measured, Row, median
from benchmarks.attention.ways import WAYS
from benchmarks.bars import digits
from docs.generator.records import by_card, length


def performance_pages() -> Iterator[tuple[str, str]]:
    """Path below the performance folder and text of every page."""
    yield "index.md", overview()
    yield "block_masks.md", block_masks()


def overview() -> str:
    """Recipes by backends, a table for each card, length and pass."""
    parts = [
        "---\ntitle: Performance\nhide: [toc]\n---",
        "# Performance",
        "How long each backend takes for each recipe, as a multiple of the fastest that computes exactly that, in the "
        "same run. **1.00** is the fastest. Empty: the backend does not compute it, or was not measured; the recipe's "
        "page says which and why. As called, a short kernel takes as long as the host needs for a call; as a replayed "
        "CUDA graph it does not. The times themselves, spreads, memory and the first call stand on the recipes' pages. "
        "[How it is measured](../how_measured.md) says what is in a time. "
        "[Building BlockMasks](block_masks.md) has a page of its own.",
    ]
    for card, of_card in by_card().items():
        for tokens in sorted({length(each) for each in of_card}, reverse=True):
            here = [each for each in of_card if length(each) == tokens]
            parts.append(f"## {card}, {tokens:,} tokens")
            parts.append(_where(here))
            for what, title in TITLES.items():
                for times, how in (("rounds_ms", "as called"), ("graph_rounds_ms", "as a replayed CUDA graph")):
                    table = _matrix(here, what, times)
                    parts += [f"{title}, {how}:", table] if table else []
    return "\n\n".join([*parts, "What the columns of the recipes' tables mean:", EXPLANATION]) + "\n"


def block_masks() -> str:
    """Building BlockMasks on cards."""
    runs = [list(record.read(path)) for path in record.result_files()]
    of_cards = [rows for rows in runs if any(row["record"] == "cell" for row in rows) and _card_of(rows) is not None]
    return f"# Building BlockMasks\n\n{card_report.page(of_cards)}"


def _card_of(rows: Sequence[Row]) -> str | None:
    card: str | None = next(row["environment"]["card"] for row in rows if row["record"] == "environment")
    return card


def _where(here: Sequence[Measured]) -> str:
    """Shapes, and folded away versions, dates and commands of the runs."""
    sources = dict.fromkeys(each.source for each in here if each.source)
    shapes = dict.fromkeys(each.title.rsplit(", ", 1)[1] for each in here)
    runs = "\n".join(f"    - {source}" for source in sources)
    return f'{"; ".join(shapes)}.\n\n??? note "Where and with what"\n\n{runs}'


def _matrix(here: Sequence[Measured], what: str, times: str) -> str:
    """The table of one pass; empty if nothing has such times."""
    found = {
        str(each.rows[0]["recipe"]): {row["backend"]: median(row[times]) for row in each.of(what) if row.get(times)}
        for each in here
    }
    names = [name for name in WAYS if any(name in ms for ms in found.values())]
    rows = []
    for recipe, ms in sorted(found.items()):
        if ms:
            best = min(ms.values())
            cells = [_multiple(ms[name] / best) if name in ms else "" for name in names]
            rows.append([f"[{recipe}](../gallery/{recipe}.md)", digits(best), *cells])
    return card_report.markdown_table(["recipe", "fastest, ms", *names], rows) if rows else ""


def _multiple(times: float) -> str:
    return "**1.00**" if times == 1 else f"{times:.2f}" if times < 10 else f"{times:.0f}"
