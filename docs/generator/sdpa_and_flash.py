"""The page on scaled_dot_product_attention beside the flash kernels, from committed benchmark records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import card_report
from benchmarks.attention.cases import COMPARED, Shape
from benchmarks.attention.report import TITLES, Measured, Row, median
from docs.generator.records import AS_CALLED, AS_GRAPH, compared_by_card
from docs.generator.times import HOW, decision, multiples, where

RECIPES = ("causal", "full")
PASSES = ("forward", "forward_backward")
OWN_CHOICE = "sdpa_default"
KERNELS = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math")
CALLED_DIRECTLY = ("flash3", "flash4")
PERCENT = " %"
MATRIX_OR_NOT = {
    "sdpa_math": "Against a kernel that holds the matrix of scores",
    OWN_CHOICE: "Against SDPA's own choice",
}
ALIKE = 0.03
"""Times that differ by no more are called alike on this page."""

SITUATIONS: dict[str, Callable[[Shape], bool]] = {
    "Short sequences, a large batch": lambda shape: shape.q_len == 512,
    "Production: a prompt of Mixtral 8x7B": lambda shape: shape.q_len > 1 and shape.Hq > shape.Hkv,
    "Production: a decoding step of Mixtral 8x7B": lambda shape: shape.q_len == 1,
    "Research: the shape of PyTorch's tutorial": lambda shape: (shape.Hq, shape.head_dim) == (32, 32),
    "Research: area attention as in YOLOv12": lambda shape: shape.q_len == 400,
    "Research: one layer of few heads": lambda shape: shape.Hq == 4,
    "Large-scale training": lambda shape: shape.q_len in (4096, 8192) and shape.B * shape.q_len == 16_384,
    "Long context": lambda shape: shape.q_len >= 32_768,
}
"""For whom which of the shapes stands."""

OPENING = """\
`scaled_dot_product_attention` (SDPA) is a function of PyTorch; FlashAttention is an algorithm that several of its
kernels follow, as do the packages of FlashAttention-3 and -4. So the question is not which of the two, but which
kernel, on which sizes. Here full and causal attention, which all of them compute, are measured side by side:

- `sdpa_default`: SDPA as PyTorch chooses its kernel; `sdpa_cudnn`, `sdpa_flash` (FlashAttention-2), `sdpa_efficient`
  and `sdpa_math`: SDPA held to one;
- `flash3` and `flash4`: the packages, called directly; `sdpa_flash_fa4`: FlashAttention-4 put in the place of PyTorch's
  own flash kernel;
- `flex_by_hand`: `torch.compile(flex_attention)`; `unfused`: softmax(q k^T) v in three steps under `torch.compile`.

`sdpa_default`, `flex_by_hand` and `unfused` call PyTorch directly; the others are calls of `attention` with that
backend. A training step is the forward and the backward pass. All outputs and gradients were held against float64
before anything was timed."""


@dataclass(frozen=True)
class Found:
    """One number and the row it is of.

    Attributes:
        value: The number.
        one: What was measured.
    """

    value: float
    one: Measured

    def linked(self, unit: str) -> str:
        """The number with a link to its table."""
        number = f"{self.value:.0f}" if unit == PERCENT else f"{self.value:.2f}"
        return f"{number}{unit} ([{_sizes(self.one)}](#{_anchor(self.one)}))"


def sdpa_and_flash() -> str:
    """The page: which to call, what is often said, and all times."""
    parts = ["---\ntitle: SDPA or FlashAttention\nhide: [toc]\n---", "# SDPA or FlashAttention", OPENING]
    for card, of_card in compared_by_card().items():
        here = sorted(of_card, key=lambda one: (_anchor(one), _shape(one).q_len))
        parts += [f"## {card}", where(here), "### Which to call", _decisions(here)]
        parts += ["### What is often said", _claims(here), *_tables(here), *_missing(here)]
    return "\n\n".join(parts) + "\n"


def _shape(one: Measured) -> Shape:
    return Shape(**one.rows[0]["shape"])


def _recipe(one: Measured) -> str:
    return str(one.rows[0]["recipe"])


def _tokens(one: Measured) -> str:
    shape = _shape(one)
    lengths = f"{shape.q_len:,}" if shape.q_len == shape.kv_len else f"{shape.q_len:,} x {shape.kv_len:,}"
    return f"{lengths}, B={shape.B}"


def _heads(one: Measured) -> str:
    shape = _shape(one)
    heads = f"Hq={shape.Hq}" if shape.Hq == shape.Hkv else f"Hq={shape.Hq} Hkv={shape.Hkv}"
    return f"{_recipe(one)}, {heads} D={shape.head_dim} {shape.dtype}"


def _sizes(one: Measured) -> str:
    return f"{_heads(one)}, {_tokens(one)}"


def _anchor(one: Measured) -> str:
    """What the heading of its table is linked by."""
    shape = _shape(one)
    return f"{_recipe(one)}-{shape.Hq}-{shape.Hkv}-{shape.head_dim}-{shape.dtype}"


def _times(one: Measured, what: str, times: str) -> dict[str, float]:
    return {str(row["backend"]): median(row[times]) for row in one.of(what) if row.get(times)}


def _decisions(here: Sequence[Measured]) -> str:
    """The table of situations; every cell is of a row below."""
    titles = ["situation", "sizes"]
    titles += [f"{_pass(what)}, {HOW[times]}" for what, times in itertools.product(PASSES, HOW)]
    lines = []
    for situation, is_of_it in SITUATIONS.items():
        found = [one for one in here if is_of_it(_shape(one))]
        for one in found:
            cells = [decision(one, what, times) for what, times in itertools.product(PASSES, HOW)]
            lines.append([situation, f"[{_sizes(one)}](#{_anchor(one)})", *cells, _own_choice(one)])
        if not found:
            lines.append([situation, "not measured yet", *[""] * (len(titles) - 1)])
    return card_report.markdown_table([*titles, "PyTorch's own choice"], lines, names=len(titles) + 1)


def _pass(what: str) -> str:
    return "forward" if what == "forward" else "training step"


def _own_choice(one: Measured) -> str:
    """The kernel that SDPA takes by itself, and how it stands to the fastest."""
    rows = [row for row in one.rows if row["backend"] == OWN_CHOICE and row["status"] == "ok"]
    if not rows:
        return ""
    ratios = []
    for what in PASSES:
        called = _times(one, what, AS_CALLED)
        if OWN_CHOICE in called:
            ratios.append(f"{called[OWN_CHOICE] / min(called.values()):.2f}")
    return f"`{rows[0]['kernel']}`, {' and '.join(ratios)} times the fastest"


def _claims(here: Sequence[Measured]) -> str:
    """What is said, and what the records say."""
    claims = (
        ("All of them return the same.", _same(here)),
        ("FlashAttention is faster than SDPA.", _faster(here)),
        ("SDPA takes its fastest kernel by itself.", _takes_fastest(here)),
        ("FlashAttention saves 80 % of the memory.", _memory(here)),
        ("`torch.compile` makes attention of three steps as fast.", _unfused(here)),
    )
    return card_report.markdown_table(["it is said", "here"], claims, names=2)


def _same(here: Sequence[Measured]) -> str:
    gates = [row["gate"] for one in here for row in one.rows if row["status"] == "ok"]
    of_out = [gate["out_error"] / gate["out_allowed"] for gate in gates]
    of_gradients = [gate["gradients_error"] / gate["gradients_allowed"] for gate in gates if "gradients_error" in gate]
    return (
        f"Up to rounding, not to the bit. Of the error that is let through, twice that of dense attention in the same "
        f"dtype, outputs have {min(of_out):.0%} to {max(of_out):.0%}; of four times that, gradients have "
        f"{min(of_gradients):.0%} to {max(of_gradients):.0%}."
    )


def _faster(here: Sequence[Measured]) -> str:
    sentences = []
    for what, times in itertools.product(PASSES, HOW):
        found = _speedups(here, what, times, CALLED_DIRECTLY, (OWN_CHOICE,))
        if found:
            sentences.append(f"{_pass(what).capitalize()}, {HOW[times]}: {_counted(found)}.")
    return f"The faster of the packages to SDPA's own choice. {' '.join(sentences)}"


def _takes_fastest(here: Sequence[Measured]) -> str:
    sentences = []
    for what in PASSES:
        # As CUDA graphs, since the kernels held to pay for the checks of attention in a call.
        found = _speedups(here, what, AS_GRAPH, (OWN_CHOICE,), KERNELS)
        if found:
            worst = min(found, key=lambda each: each.value)
            as_fast = sum(each.value >= 1 - ALIKE for each in found)
            sentences.append(f"{_pass(what).capitalize()}: in {as_fast} of {len(found)}; least {worst.linked('x')}.")
    return f"As fast as the fastest of its kernels, as CUDA graphs. {' '.join(sentences)}"


def _speedups(
    here: Sequence[Measured], what: str, times: str, ways: Sequence[str], others: Sequence[str]
) -> list[Found]:
    """How many times as fast the fastest of some ways is as the fastest of others, where both were timed."""
    found = []
    for one in here:
        timed = _times(one, what, times)
        mine, theirs = ([timed[way] for way in some if way in timed] for some in (ways, others))
        if mine and theirs:
            found.append(Found(min(theirs) / min(mine), one))
    return found


def _counted(found: Sequence[Found]) -> str:
    faster, slower = sum(each.value > 1 + ALIKE for each in found), sum(each.value < 1 - ALIKE for each in found)
    least, most = min(found, key=lambda each: each.value), max(found, key=lambda each: each.value)
    return f"faster in {faster}, slower in {slower} of {len(found)}; {least.linked('x')} to {most.linked('x')}"


def _memory(here: Sequence[Measured]) -> str:
    sentences = ["`sdpa_flash` in a training step, beyond the inputs."]
    for other, words in MATRIX_OR_NOT.items():
        found = [Found(100 * (1 - mine / theirs), one) for one in here for mine, theirs in _peaks(one, other)]
        if found:
            least, most = min(found, key=lambda each: each.value), max(found, key=lambda each: each.value)
            sentences.append(f"{words} it saves {least.linked(PERCENT)} to {most.linked(PERCENT)}.")
    sentences.append("Less than 0 is more memory. A matrix grows with the square of the length: no share is fixed.")
    return " ".join(sentences)


def _peaks(one: Measured, other: str) -> Iterator[tuple[int, int]]:
    peaks = {row["backend"]: row["peak_bytes"] for row in one.of("forward_backward") if row["status"] == "ok"}
    if "sdpa_flash" in peaks and peaks.get(other):
        yield peaks["sdpa_flash"], peaks[other]


def _unfused(here: Sequence[Measured]) -> str:
    found = _speedups(here, "forward", AS_GRAPH, ("unfused",), (OWN_CHOICE,))
    if not found:
        return "Not measured."
    least, most = min(found, key=lambda each: each.value), max(found, key=lambda each: each.value)
    held = sum(_holds_matrix(one) for one in here)
    return (
        f"Forward, as a CUDA graph: {least.linked('x')} to {most.linked('x')} as fast as SDPA. In {held} of "
        f"{len(found)} it took memory for the matrix of scores: the compiler had not made SDPA of it."
    )


def _holds_matrix(one: Measured) -> bool:
    shape = _shape(one)
    matrix = shape.B * shape.Hq * shape.q_len * shape.kv_len * 2
    rows = [row for row in one.of("forward") if row["backend"] == "unfused" and row["status"] == "ok"]
    return any(row["peak_bytes"] >= matrix for row in rows)


def _tables(here: Sequence[Measured]) -> Iterator[str]:
    yield "### All times"
    yield "As multiples of the fastest in the row; **bold** is the fastest and what cannot be told apart from it."
    for anchor, group in itertools.groupby(here, key=_anchor):
        of_it = list(group)
        yield f"#### {_heads(of_it[0])} {{ #{anchor} }}"
        for what, times in itertools.product(PASSES, HOW):
            table = multiples("tokens", _tokens, of_it, what, times)
            if table:
                yield f"{TITLES[what]}, {HOW[times]}:"
                yield table
        yield "Memory of a training step beyond its inputs, MiB:"
        yield _memory_table(of_it)


def _memory_table(here: Sequence[Measured]) -> str:
    found = [{row["backend"]: row for row in one.of("forward_backward")} for one in here]
    ways = [way for way in found[0] if any(rows[way]["status"] in ("ok", "oom") for rows in found)]
    lines = [[_tokens(one), *(_mebibytes(rows[way]) for way in ways)] for one, rows in zip(here, found, strict=True)]
    return card_report.markdown_table(["tokens", *ways], lines)


def _mebibytes(row: Row) -> str:
    if row["status"] == "ok":
        return f"{row['peak_bytes'] / 2**20:,.0f}"
    return "does not fit" if row["status"] == "oom" else ""


def _missing(here: Sequence[Measured]) -> Iterator[str]:
    there = {(_recipe(one), _shape(one)) for one in here}
    missing = [(recipe, shape) for recipe in RECIPES for shape in COMPARED if (recipe, shape) not in there]
    if missing:
        listed = "\n".join(
            f"    - {recipe}: {shape.q_len:,} x {shape.kv_len:,}, B={shape.B} Hq={shape.Hq} Hkv={shape.Hkv} "
            f"D={shape.head_dim} {shape.dtype}"
            for recipe, shape in missing
        )
        total = len(RECIPES) * len(COMPARED)
        yield f'??? note "Not measured yet: {len(missing)} of {total} sizes"\n\n{listed}'
