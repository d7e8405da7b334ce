"""The pages on performance, from committed benchmark records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from benchmarks import card_report, record
from benchmarks.attention.cases import Shape
from benchmarks.attention.report import EXPLANATION, TITLES, Measured, Row
from benchmarks.attention.ways import BASELINE
from docs.generator.choice import how_good_the_choice_is
from docs.generator.examples import catalogue
from docs.generator.flex_options import flex_options
from docs.generator.records import by_card, case, length
from docs.generator.sdpa_and_flash import sdpa_and_flash
from docs.generator.search import PAGE_LEFT_OUT, SECTION_LEFT_OUT
from docs.generator.times import decision, multiples, where
from docs.generator.words import HOW, HOW_EXPLAINED, PASSES, heads, lengths, passed

DECIDED = tuple(itertools.product(PASSES, HOW))
"""The passes and times of which the decision table names the fastest."""


def which_is_fastest() -> str:
    """The decision table: for each recipe, length and pass the fastest backend, a row of a record behind every cell."""
    parts = [
        "---\ntitle: Performance\nhide: [toc]\n---",
        "# Performance",
        "Which way to compute a recipe is fastest, of all that were held against float64 first. Several names: their "
        f"times cannot be told apart. {HOW_EXPLAINED} "
        f"`{BASELINE}` is `torch.compile(flex_attention)` with the rule as its paper writes it, `sdpa_default` "
        "PyTorch's own choice of kernel; the other names are backends of `attention`.",
        "- [All backends, as multiples of the fastest](all_backends.md)\n"
        "- [SDPA or FlashAttention](sdpa_and_flash.md): full and causal attention on many more sizes\n"
        "- [How good the choice of auto is](choice.md)\n"
        "- [Building BlockMasks](block_masks.md)\n"
        "- [How it is measured](../how_measured.md), and what is unfair about it",
    ]
    for card, of_card in by_card().items():
        parts.append(f"## {card} {{ {SECTION_LEFT_OUT} }}")
        for title, here in _by_length(of_card).items():
            parts += [f"### {title} {{ {SECTION_LEFT_OUT} }}", where(here), _decisions(here)]
        there = {str(one.rows[0]["recipe"]) for one in of_card}
        missing = [entry.name for entry in catalogue() if entry.name not in there]
        if missing:
            parts.append(f"Not measured on this card yet, at any length: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def all_backends() -> str:
    """Recipes by backends, a table for each card, length and pass."""
    parts = [
        f"---\ntitle: All backends\nhide: [toc]\n{PAGE_LEFT_OUT}\n---",
        "# All backends",
        "How long each takes, as a multiple of the fastest in the same run. **Bold** is the fastest and what cannot be "
        "told apart from it. Empty: it does not compute the recipe; or, in the tables of device time, cannot be "
        "captured as a graph; or it was not measured, or by code that is gone. Where its run has a reason the recipe's "
        "page says it. The times themselves, spreads, memory and the first call stand there too.",
        HOW_EXPLAINED,
    ]
    for card, of_card in by_card().items():
        for title, here in _by_length(of_card).items():
            parts += [f"## {card}, {title}", where(here)]
            for (what, title), (times, how) in itertools.product(TITLES.items(), HOW.items()):
                table = multiples("recipe", _link, here, what, times)
                parts += [f"{title}, {how}:", table] if table else []
    parts += filter(None, [flex_options()])
    return "\n\n".join([*parts, "What the columns of the recipes' tables mean:", EXPLANATION]) + "\n"


def block_masks() -> str:
    """Building BlockMasks on cards."""
    runs = [list(record.read(path)) for path in record.result_files()]
    of_cards = [rows for rows in runs if any(row["record"] == "cell" for row in rows) and _card_of(rows) is not None]
    principal_first = sorted(of_cards, key=lambda rows: not _is_of_principal_masks(rows))
    opening = (
        "How long it takes to build a BlockMask on a card, against PyTorch's own `create_block_mask`, eager and "
        "compiled, with parameter values that are new in every call. The first run is of the three masks that bars are "
        "set for: causal, a window, packed documents; the others are of five more rules and of greater lengths. At the "
        "end of each run stands what it is held to, and by how much that is missed."
    )
    head = f"---\ntitle: Building BlockMasks\n{PAGE_LEFT_OUT}\n---\n\n# Building BlockMasks"
    return f"{head}\n\n{opening}\n\n{card_report.page(principal_first)}"


def _is_of_principal_masks(rows: Sequence[Row]) -> bool:
    """Whether the run is of the masks that bars are set for."""
    return any(row.get("recipe") == "causal" for row in rows)


def _card_of(rows: Sequence[Row]) -> str | None:
    card: str | None = next(row["environment"]["card"] for row in rows if row["record"] == "environment")
    return card


def _by_length(of_card: Sequence[Measured]) -> dict[str, list[Measured]]:
    """What was measured at each pair of lengths and shape, the longest first, recipes by name."""
    ordered = sorted(of_card, key=lambda each: (-length(each), str(each.rows[0]["recipe"])))
    found: dict[str, list[Measured]] = {}
    for each in ordered:
        shape = Shape(**each.rows[0]["shape"])
        found.setdefault(f"{lengths(shape)} tokens, B={shape.B} {heads(shape)}", []).append(each)
    return found


def _link(one: Measured) -> str:
    recipe = one.rows[0]["recipe"]
    return f"[{recipe}](../gallery/{recipe}.md)" + (f", {case(one)}" if case(one) else "")


def _decisions(here: Sequence[Measured]) -> str:
    titles = [f"{passed(what)}, {HOW[times]}" for what, times in DECIDED]
    rows = [[_link(each), *(decision(each, what, times) for what, times in DECIDED)] for each in here]
    return card_report.markdown_table(["recipe", *titles], rows, names=1 + len(DECIDED))


PAGES: dict[str, Callable[[], str]] = {
    "index.md": which_is_fastest,
    "all_backends.md": all_backends,
    "sdpa_and_flash.md": sdpa_and_flash,
    "choice.md": how_good_the_choice_is,
    "block_masks.md": block_masks,
}
"""By path below the performance folder what writes each page."""
