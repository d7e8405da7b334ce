"""The page on scaled_dot_product_attention beside the flash kernels, from committed benchmark records."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import card_report
from benchmarks.attention.cases import COMPARED, Shape
from benchmarks.attention.gate import LONGEST
from benchmarks.attention.report import TITLES, Row
from benchmarks.attention.ways import BASELINE
from docs.generator.claims import KERNELS, PACKAGES, claims, how_sure
from docs.generator.comparison import OWN_CHOICE, Comparison
from docs.generator.records import compared_by_card
from docs.generator.search import SECTION_LEFT_OUT
from docs.generator.times import decision, multiples, where
from docs.generator.words import AS_GRAPH, BOTH, HOW, HOW_EXPLAINED, PASSES, heads, passed, tokens

RECIPES = ("causal", "full")
WHICH_TO_CALL = f"### Which to call {{ {SECTION_LEFT_OUT} }}"
SHOWN = (OWN_CHOICE, *KERNELS, *PACKAGES, "sdpa_flash_fa4", BASELINE, "three_steps", "unfused")
"""The ways that the page compares."""

NO_ROW = {"status": "no row", "message": "not measured in its run"}
MEMORY = f"Memory of {passed(BOTH)} beyond the inputs, MiB:"


@dataclass(frozen=True)
class Situation:
    """Who asks.

    Attributes:
        name: In words.
        recipes: What they compute.
        includes: Which of the shapes stand for it.
    """

    name: str
    recipes: tuple[str, ...]
    includes: Callable[[Shape], bool]


SITUATIONS = (
    Situation("Short sequences, a large batch", RECIPES, lambda shape: shape.q_len == 512),
    Situation(
        "Production: a prompt of Mixtral 8x7B", ("causal",), lambda shape: shape.q_len > 1 and shape.Hq > shape.Hkv
    ),
    Situation("Production: a decoding step of Mixtral 8x7B", ("causal",), lambda shape: shape.q_len == 1),
    Situation("Research: PyTorch's tutorial", ("full",), lambda shape: (shape.Hq, shape.head_dim) == (32, 32)),
    Situation("Research: area attention as in YOLOv12", ("full",), lambda shape: shape.q_len == 400),
    Situation("Research: one layer of few heads", RECIPES, lambda shape: shape.Hq == 4),
    Situation(
        "Large-scale training", ("causal",), lambda shape: shape.q_len in (4096, 8192) and shape.Hq == shape.Hkv > 4
    ),
    Situation("Long context", ("causal",), lambda shape: shape.q_len >= 32_768),
)

OPENING = f"""\
`scaled_dot_product_attention` (SDPA) is a function of PyTorch; FlashAttention is an algorithm that several of its
kernels follow, as do the packages of FlashAttention-3 and -4. So the question is not which of the two, but which
kernel, on which sizes. Here full and causal attention, which all of them compute, are measured side by side:

- `sdpa_default`: SDPA as PyTorch chooses its kernel; `sdpa_cudnn`, `sdpa_flash` (FlashAttention-2), `sdpa_efficient`
  and `sdpa_math`: SDPA held to one;
- `flash3` and `flash4`: the packages; `sdpa_flash_fa4`: FlashAttention-4 in the place of PyTorch's own flash kernel;
- `flex_by_hand`: `torch.compile(flex_attention)`; `three_steps`: softmax(q k^T + mask) v as one writes it, under
  `torch.compile`; `unfused`: the same with softmax in float32.

`sdpa_default`, `flex_by_hand`, `three_steps` and `unfused` call PyTorch directly; the others are calls of `attention`
with that backend, its checks included. All of them were held against float64 before anything was timed, sequences
beyond {LONGEST["cuda"]:,} tokens at that length.

{HOW_EXPLAINED}"""


def sdpa_and_flash() -> str:
    """The page: which to call, what is often said, and all times."""
    parts = ["---\ntitle: SDPA or FlashAttention\nhide: [toc]\n---", "# SDPA or FlashAttention", OPENING]
    for card, of_card in compared_by_card().items():
        unsorted = (Comparison(card, one) for one in of_card)
        here = sorted(unsorted, key=lambda one: (one.anchor, one.shape.q_len))
        parts += [f"## {card} {{ {SECTION_LEFT_OUT} }}", where([one.measured for one in here])]
        parts += [WHICH_TO_CALL, _decisions(here), how_sure(here)]
        parts += [
            f"### What is often said {{ {SECTION_LEFT_OUT} }}",
            card_report.markdown_table(["it is said", "here"], claims(here), names=2),
        ]
        parts += ["### All times", *_tables(here), *_missing(here)]
    return "\n\n".join(parts) + "\n"


def _decisions(here: Sequence[Comparison]) -> str:
    """The table of situations; every cell is of a row below."""
    titles = ["situation", "sizes"]
    titles += [f"{passed(what)}, {HOW[times]}" for what, times in itertools.product(PASSES, HOW)]
    lines = []
    for situation in SITUATIONS:
        found = [one for one in here if one.recipe in situation.recipes and situation.includes(one.shape)]
        for one in found:
            cells = [decision(one.measured, what, times) for what, times in itertools.product(PASSES, HOW)]
            lines.append([situation.name, one.link, *cells, _own_choice(one)])
        all_of_them = sum(situation.includes(shape) for shape in COMPARED) * len(situation.recipes)
        if len(found) < all_of_them:
            missing = f"{all_of_them - len(found)} of {all_of_them} not measured yet" if found else "not measured yet"
            lines.append([situation.name, missing, *[""] * (len(titles) - 1)])
    return card_report.markdown_table([*titles, "PyTorch's own choice"], lines, names=len(titles) + 1)


def _own_choice(one: Comparison) -> str:
    """The kernel that SDPA takes by itself, and how it stands to the fastest."""
    ratios = []
    for what in PASSES:
        timed = one.times(what, AS_GRAPH)
        if OWN_CHOICE in timed:
            ratios.append(f"{timed[OWN_CHOICE] / min(timed.values()):.2f}")
    times = f"{HOW[AS_GRAPH]} {' and '.join(ratios)} times that of the fastest"
    return f"`{one.own_kernel()}`, {times}" if ratios else ""


def _tables(here: Sequence[Comparison]) -> Iterator[str]:
    yield "As multiples of the fastest in the row; **bold** is the fastest and what cannot be told apart from it."
    for anchor, group in itertools.groupby(here, key=lambda one: one.anchor):
        rows = list(group)
        measured = [one.measured for one in rows]
        yield f"#### {rows[0].heads} {{ #{anchor} {SECTION_LEFT_OUT} }}"
        (first, first_table), *others = [
            (f"{TITLES[what]}, {HOW[times]}:", table)
            for what, times in itertools.product(PASSES, HOW)
            if (table := multiples("tokens", lambda one: Comparison("", one).tokens, measured, what, times))
        ]
        yield from (first, first_table)
        folded = [*itertools.chain(*others), MEMORY, _memory_table(rows), *_without_times(rows)]
        body = textwrap.indent("\n\n".join(folded), "    ")
        yield f'??? note "As called, forward and backward, and memory"\n\n{body}'


def _memory_table(here: Sequence[Comparison]) -> str:
    found = [one.rows(BOTH) for one in here]
    ways = list(dict.fromkeys(way for rows in found for way, row in rows.items() if row["status"] in ("ok", "oom")))
    lines = [[one.tokens, *(_mebibytes(rows.get(way)) for way in ways)] for one, rows in zip(here, found, strict=True)]
    return card_report.markdown_table(["tokens", *ways], lines)


def _mebibytes(row: Row | None) -> str:
    if row is None or row["status"] not in ("ok", "oom"):
        return ""
    return f"{row['peak_bytes'] / 2**20:,.0f}" if row["status"] == "ok" else "does not fit"


def _without_times(here: Sequence[Comparison]) -> Iterator[str]:
    """Why a cell is empty, folded away."""
    reasons: dict[str, list[str]] = {}
    for one, what in itertools.product(here, PASSES):
        rows = one.rows(what)
        for way in dict.fromkeys((*SHOWN, *rows)):
            row = rows.get(way, NO_ROW)
            if row["status"] != "ok":
                reasons.setdefault(f"{way}, {row['status']}: {row['message']}", []).append(
                    f"{one.tokens} {passed(what)}"
                )
    if reasons:
        listed = "\n".join(f"    - {reason} ({'; '.join(cases)})" for reason, cases in reasons.items())
        yield f'??? note "Without a time"\n\n{listed}'


def _missing(here: Sequence[Comparison]) -> Iterator[str]:
    there = {(one.recipe, one.shape) for one in here}
    missing = [(recipe, shape) for recipe in RECIPES for shape in COMPARED if (recipe, shape) not in there]
    if missing:
        listed = "\n".join(f"    - {recipe}, {heads(shape)}, {tokens(shape)}" for recipe, shape in missing)
        total = len(RECIPES) * len(COMPARED)
        yield f'??? note "Not measured yet: {len(missing)} of {total} sizes"\n\n{listed}'
