"""Generated kernels: their text, and what happens if it says something slightly else.

A mutant is one change to the text of a rule's kernels; what it computes must be seen to be wrong. One whose text is no
longer in the source has to be written anew for the source as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from attn_mods.fused import planes
from attn_mods.fused.compiled import Background
from attn_mods.fused.form import Step, form_of
from attn_mods.fused.points import argument_names, table_dtypes
from attn_mods.fused.source import COLUMNS, ROWS, Source, source_of
from attn_mods.tiles import Grid
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import trace
from tests.fused.comparison import true_codes, unpacked

POSITIONS = torch.arange(70)
IDS, SQUARES = POSITIONS // 17, (POSITIONS // 11) ** 2
STEPS, WINDOWS, SHORT = torch.tensor([3, 7]), torch.tensor([[2, 30], [9, 50]]), torch.arange(44)
ENDS = torch.where(POSITIONS % 3 == 0, torch.iinfo(torch.int64).max, POSITIONS)
LOW, MIDDLE = torch.tensor([0, 10] * 35), torch.tensor([3, 7] * 35)
SIGNS = torch.where(POSITIONS < 10, -5, 1)


def mixture(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Leaves with negative indices, a divisor of the head, and a difference."""
    return (IDS[q_idx - 3] == IDS[kv_idx]) & ((q_idx - kv_idx) % STEPS[h] < 2) & (q_idx >= kv_idx)


# Rules on grids of their own: blocks that are no powers of two, ragged ends, several batches, rectangles and steps.
RULES: dict[str, tuple[Rule, Grid]] = {
    "mixture": (mixture, Grid(45, 40, (12, 16), H=2)),
    "causal": (lambda b, h, q, k: q >= k, Grid(45, 45, (16, 16))),
    "causal, keys later by one": (lambda b, h, q, k: q >= k, Grid(45, 45, (16, 16), kv_offset=1)),
    "causal, keys earlier by one": (lambda b, h, q, k: q >= k, Grid(45, 45, (16, 16), kv_offset=-1)),
    "strictly causal, queries later by one": (lambda b, h, q, k: q > k, Grid(45, 45, (16, 16), q_offset=1)),
    "strictly causal, queries earlier by one": (lambda b, h, q, k: q > k, Grid(45, 45, (16, 16), q_offset=-1)),
    "distance": (lambda b, h, q, k: q - k < 20, Grid(45, 45, (16, 16))),
    "all kept": (lambda b, h, q, k: q + k >= 0, Grid(45, 40, (16, 16))),
    "all kept, by an unknown": (lambda b, h, q, k: ((q * k) ^ 1) >= 0, Grid(33, 33, (16, 16))),
    "documents": (lambda b, h, q, k: IDS[q] == SQUARES[k], Grid(45, 45, (16, 16))),
    "documents in order": (lambda b, h, q, k: IDS[q] + 1 >= IDS[k], Grid(48, 48, (16, 16))),
    "documents per head": (lambda b, h, q, k: IDS[q + 17 * h] > k // 9, Grid(33, 33, (16, 16), H=2)),
    "chunks": (lambda b, h, q, k: q // 12 == k // 16, Grid(45, 40, (12, 16))),
    "chunks, by an unknown": (lambda b, h, q, k: (q // 12 == k // 16) | (((q * k) ^ 1) < 0), Grid(45, 40, (12, 16))),
    "never equal": (lambda b, h, q, k: LOW[q] == MIDDLE[k], Grid(33, 33, (16, 16))),
    "window per batch and head": (lambda b, h, q, k: (q - k).abs() < WINDOWS[b, h], Grid(33, 33, (16, 16), B=2, H=2)),
    "unknown at negative indices": (lambda b, h, q, k: ((SIGNS[q - 60] * k) ^ 1) >= 0, Grid(33, 33, (16, 16))),
    "one position kept": (lambda b, h, q, k: ((q ^ 20) | (k ^ 5)) == 0, Grid(32, 130, (32, 128))),
    "sentinels in arithmetic": (lambda b, h, q, k: k + ENDS[q] > 40, Grid(45, 45, (16, 16))),
    "quotients": (lambda b, h, q, k: (q - k) // 5 < 0, Grid(33, 33, (16, 16))),
    "rectangles": (lambda b, h, q, k: q - k >= 9, Grid(ROWS * 2 + 1, COLUMNS + 2, (1, 1))),
    "reaches the end of its table": (lambda b, h, q, k: SHORT[q + 0] >= k, Grid(44, 40, (16, 16))),
    "leaves its table by one": (lambda b, h, q, k: SHORT[q + 1] >= k, Grid(44, 40, (16, 16))),
}


def text_of(name: str) -> str:
    rule, grid = RULES[name]
    return source_of(form_of(trace(rule, grid), grid).form, grid.block_size).text


def kernels_are_right(name: str, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernels of a rule with changed text compute what the rule keeps, or raise what they should."""

    def changed(form: tuple[Step, ...], block_size: tuple[int, int]) -> Source:
        source = source_of(form, block_size)
        return replace(source, text=change(source.text))

    background = Background()
    monkeypatch.setattr(planes, "kernels", background)
    monkeypatch.setattr(planes, "source_of", changed)
    rule, grid = RULES[name]
    graph = trace(rule, grid)
    assert planes.fused_planes(graph, grid, name) is None
    background.finish()
    try:
        made = planes.fused_planes(graph, grid, name)
    except IndexError:
        return name == "leaves its table by one"
    assert made is not None
    if name == "leaves its table by one":
        return False
    expected = true_codes(rule, grid)
    return all(torch.equal(codes.expand_as(expected), expected) for codes in unpacked(made))


class Mutant(NamedTuple):
    """``old``, a pattern, becomes ``new`` in the kernels of a rule, wherever it is."""

    rule: str
    old: str
    new: str


MUTANTS: dict[str, Mutant] = {
    # the claims
    "full only where ends do not touch": Mutant(
        "causal, keys later by one", r"kv_last <= q_first", "kv_last < q_first"
    ),
    "full where ends touch": Mutant(
        "strictly causal, queries earlier by one", r"kv_last < q_first", "kv_last <= q_first"
    ),
    "empty where ends touch": Mutant("causal, keys earlier by one", r"kv_first > q_last", "kv_first >= q_last"),
    "empty only where ends are apart": Mutant(
        "strictly causal, queries later by one", r"kv_first >= q_last", "kv_first > q_last"
    ),
    "full and mixed swapped": Mutant("causal", r"1, tl.where\((node\d+), tl.where\(", r"2, tl.where(\1, tl.where("),
    "unknown called mixed": Mutant("all kept, by an unknown", r", 2, 3\)", ", 2, 2)"),
    "nothing is empty": Mutant("causal", r", 2, 3\), 0\)", ", 2, 3), 2)"),
    "last position one too far": Mutant("causal", r"(q_len\)) - 1 \+ q_offset", r"\1 + q_offset"),
    "overflow not checked": Mutant("sentinels in arithmetic", "2147483648, tl.int64", "9223372036854775807, tl.int64"),
    # leaves
    "smallest for largest": Mutant("documents", r"tl\.max\(tl\.where\(q_inside", "tl.min(tl.where(q_inside"),
    "largest for smallest": Mutant("documents", r"tl\.min\(tl\.where\(kv_inside", "tl.max(tl.where(kv_inside"),
    "positions of the next tile": Mutant("chunks", r"\(q_inner < 12\) & \(q_place < q_len\)", "(q_place < q_len)"),
    "steps of ten taken for every integer": Mutant("never equal", r"\) == 1\)\)", ") <= 10))"),
    "negative index not wrapped": Mutant("mixture", r"(q_at\d+_0) \+ number\d+, ", r"\1, "),
    "negative index not wrapped in settling": Mutant(
        "unknown at negative indices", r"(\bat\d+_0) \+ number\d+, ", r"\1, "
    ),
    "one index past the end let through": Mutant("leaves its table by one", r">= number(\d+)\)\)", r"> number\1))"),
    "index past the end not told": Mutant("leaves its table by one", r"outside > 0", "outside > 1"),
    "last index called outside": Mutant("reaches the end of its table", r">= number(\d+)\)\)", r">= number\1 - 1))"),
    "leaves of the first head": Mutant(
        "documents per head", r"\* pairs \+ pair\)( \* rows \+ near_row)", r"* pairs)\1"
    ),
    "leaves of rows for those of columns": Mutant("documents", r"leaf_values \+ 3 \* pairs \* rows", "leaf_values"),
    "first part for the second": Mutant(
        "documents", r"\(1 \* pairs \+ pair\)( \* rows \+ near)", r"(0 * pairs + pair)\1"
    ),
    # batches and heads
    "head for batch": Mutant("window per batch and head", r"b = pair // heads", "b = pair % heads"),
    "batch for head": Mutant("window per batch and head", r"h = pair % heads", "h = pair // heads"),
    "every head writes to the first": Mutant("mixture", r"\(pair \* rows \+ row\)", "row"),
    "every head writes columns to the first": Mutant("mixture", r"\(pair \* columns \+ column\)", "column"),
    # rectangles
    "rectangle from its largest low end": Mutant("documents in order", r"tl\.min\((leaf\d+_low)\)", r"tl.max(\1)"),
    "rectangle from its smallest high end": Mutant("documents in order", r"tl\.max\((leaf\d+_high)\)", r"tl.min(\1)"),
    "rectangle of its first row": Mutant("distance", rf"\(first_row \+ {ROWS}\) \* 16", "(first_row + 1) * 16"),
    "full rectangle with ragged tiles": Mutant("all kept", r"& \(at_the_edge == 0\)", "& (at_the_edge < 2)"),
    "edge only behind the end": Mutant("all kept", r"> (whole_\w+)\)", r"> \1 + 64)"),
    "rectangles in columns first": Mutant(
        "rectangles", r"program_id\(0\) % column_groups", "program_id(0) // column_groups"
    ),
    # settling
    "settled as full": Mutant("mixture", r"kept \* \(1 \+ dropped\)", "kept"),
    "dropped taken for kept": Mutant("all kept, by an unknown", r"(at\d+) == 0\)", r"\1 != 0)"),
    "positions behind the block": Mutant("chunks, by an unknown", r"here = \(q_inner < 12\) &", "here ="),
    "another row of tiles settled": Mutant(
        "chunks, by an unknown", rf"picked // {COLUMNS}", f"picked // {COLUMNS * 2}"
    ),
    "another column of tiles settled": Mutant("chunks, by an unknown", rf"picked % {COLUMNS}", "picked % 2"),
    "last step of a block left out": Mutant("one position kept", r"while \(done < 32\)", "while (done < 16)"),
    "steps too wide": Mutant("one position kept", r"done \+= 16", "done += 24"),
    "settled by one step": Mutant("one position kept", r"kept \+ dropped < 2", "kept + dropped < 1"),
    # what is written
    "ragged row called full": Mutant("all kept", r"row >= whole_rows", "row > whole_rows"),
    "ragged column called full": Mutant("all kept", r"column >= whole_columns", "column > whole_columns"),
    "codes of one bit": Mutant("causal", r"\(2 \* tl\.arange\(0, 4\)\)", "(tl.arange(0, 4))"),
    "largest of four codes": Mutant("causal", r"tl\.sum\(along, 2\)", "tl.max(along, 2)"),
    "largest of four codes by columns": Mutant("causal", r"tl\.sum\(down, 1\)", "tl.max(down, 1)"),
    # arithmetic
    "quotients rounded to zero": Mutant(
        "quotients",
        "from attn_mods.kernels.arithmetic import floor_divide, ",
        "\n@triton.jit\ndef floor_divide(a, b):\n    return a // b\n\nfrom attn_mods.kernels.arithmetic import ",
    ),
}


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    assert re.search(mutant.old, text_of(mutant.rule)), f"{mutant.old} is not in the kernels of {mutant.rule}"
    assert not kernels_are_right(mutant.rule, lambda text: re.sub(mutant.old, mutant.new, text), monkeypatch)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", RULES)
def test_rule_of_the_mutants_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_are_right(name, lambda text: text, monkeypatch)


def test_text_follows_from_form_and_block_size() -> None:
    assert text_of("mixture") == text_of("mixture")
    rule, grid = RULES["mixture"]
    form = form_of(trace(rule, grid), grid).form
    assert source_of(form, (12, 16)).text != source_of(form, (16, 12)).text
    assert text_of("causal") == text_of("causal, keys later by one")
    assert text_of("causal") != text_of("strictly causal, queries later by one")


def test_arguments_of_a_form() -> None:
    rule, grid = RULES["mixture"]
    call = form_of(trace(rule, grid), grid)
    integers, tables = argument_names(call.form)
    assert integers == [f"number{place}" for place in range(len(call.integers))]
    assert tables == [f"table{place}" for place in range(len(call.tables))]
    assert list(table_dtypes(call.form).values()) == [table.dtype for table in call.tables]


def test_rule_of_bare_positions_needs_no_leaves() -> None:
    source = source_of(form_of(trace(*RULES["causal"]), RULES["causal"][1]).form, (16, 16))
    assert (source.row_slots, source.column_slots) == (0, 0)
    leafy = source_of(form_of(trace(*RULES["documents"]), RULES["documents"][1]).form, (16, 16))
    assert (leafy.row_slots, leafy.column_slots) == (3, 3)


def test_enough_mutants() -> None:
    assert len(MUTANTS) >= 40
    assert len(set(MUTANTS.values())) == len(MUTANTS)
