"""The bars, worked out by hand from the golden records of a card: met, missed by how much, and not measured."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record
from benchmarks.bars import PEAK_TO_LISTS, Bar, Value, bars, digits

RECORDS = list(record.read(Path(__file__).with_name("golden_card.jsonl")))
BARS = {bar.subject: bar for bar in bars(RECORDS)}
OVER = "the run's 220 s were over"


@pytest.mark.parametrize(
    ("subject", "required", "entry", "closure"),
    [
        # 14.4 ms over 0.2 and 0.24: a bar that is reached exactly is met
        ("causal, 131,072 tokens: faster than compiled torch", ">= 60x", "met: 72.0x", "met: 60.0x"),
        # the median of 0.09, 0.1 and 0.4, and 0.05, against 0.2 of compiled torch
        ("causal, 32,768 tokens: faster than compiled torch", ">= 3x", "missed by 33%: 2x", "met: 4x"),
        ("causal, 32,768 tokens: time", "<= 0.2 ms", "met: 0.1 ms", "met: 0.05 ms"),
        ("document_causal, 131,072 tokens: time", "<= 0.25 ms", "met: 0.25 ms", "missed by 4.0%: 0.26 ms"),
        (
            "document_causal, 131,072 tokens: faster than compiled torch",
            ">= 60x",
            f"not measured (torch_compiled skipped: {OVER})",
            f"not measured (torch_compiled skipped: {OVER})",
        ),
        (
            "sliding_window, 131,072 tokens: time",
            "<= 0.25 ms",
            "missed by 20%: 0.3 ms",
            "not measured (attn_mods_closure wrong: kv_indices differs)",
        ),
        ("sliding_window, 32,768 tokens: time", "<= 0.2 ms", "not measured", "not measured"),
        # of causal the first call of 48 ms counts, not the one of 70 ms at a later length
        (
            "the first mask of a new rule, worst",
            "<= 60 ms",
            "missed by 3.3%: 62.0 ms (sliding_window, 131,072 tokens, attn_mods)",
            "missed by 1.7%: 61.0 ms (sliding_window, 32,768 tokens, attn_mods_first)",
        ),
        ("sliding_window, 1,048,576 tokens, compact lists: time", "<= 0.5 ms", "met: 0.45 ms", "met: 0.5 ms"),
        (
            "sliding_window, 1,048,576 tokens, compact lists: peak memory",
            "<= 64 MB",
            "met: 60.0 MB",
            "missed by 25%: 80.0 MB",
        ),
        # 12.5 MiB for lists of 8, which is worse than 12 for 8; compact lists are not asked
        (
            "full-width lists, 131,072 tokens, worst: peak memory to lists",
            "<= 1.5x",
            "missed by 4.2%: 1.56x (document_causal, 131,072 tokens, attn_mods)",
            "met: 1.5x (causal, 131,072 tokens, attn_mods_closure)",
        ),
        (
            "full-width lists, 1,048,576 tokens, worst: peak memory to lists",
            "<= 1.5x",
            "missed by 6.7%: 1.6x (sliding_window, 1,048,576 tokens, attn_mods)",
            "not measured",
        ),
    ],
    ids=lambda text: text if text in BARS else "",
)
def test_what_a_run_reached(subject: str, required: str, entry: str, closure: str) -> None:
    bar = BARS[subject]
    assert (bar.required, bar.verdict(bar.entry), bar.verdict(bar.closure)) == (required, entry, closure)


def test_every_bar_is_there() -> None:
    # time and ratio of three masks at two lengths, the first mask, two at 1,048,576 tokens, memory at each length
    assert len(BARS) == 3 * 2 * 2 + 1 + 2 + 3


@pytest.mark.parametrize(
    ("number", "at_least", "verdict"),
    [
        (1.5, False, "met: 1.5x"),
        (1.500001, False, "missed by 0.1%: 1.5x"),
        (3.0, False, "missed by 100%: 3x"),
        (1.5, True, "met: 1.5x"),
        (1.499999, True, "missed by 0.1%: 1.5x"),
        (0.75, True, "missed by 50%: 0.75x"),
    ],
)
def test_how_much_a_bar_is_missed_by(number: float, at_least: bool, verdict: str) -> None:
    value = Value(number)
    assert Bar("memory", PEAK_TO_LISTS, "x", at_least, value, value).verdict(value) == verdict


def changed(method: str, **values: Any) -> list[dict[str, Any]]:
    records = copy.deepcopy(RECORDS)
    for row in records:
        if row.get("backend") == method:
            row.update(values)
    return records


def test_a_slower_run_misses_more() -> None:
    slow = {bar.subject: bar for bar in bars(changed("attn_mods", samples_ms=[2.0]))}
    bar = slow["causal, 131,072 tokens: faster than compiled torch"]
    assert bar.verdict(bar.entry) == "missed by 88%: 7.2x"
    assert bar.verdict(bar.closure) == "met: 60.0x"


def test_compact_lists_are_not_held_to_the_bar_of_full_ones() -> None:
    compact = {bar.subject: bar for bar in bars(changed("attn_mods", full_width=False))}
    bar = compact["full-width lists, 1,048,576 tokens, worst: peak memory to lists"]
    assert bar.verdict(bar.entry) == "not measured"


@pytest.mark.parametrize(("number", "text"), [(1234.5, "1,234"), (72.04, "72.0"), (0.2468, "0.247"), (0.05, "0.05")])
def test_three_digits_or_more(number: float, text: str) -> None:
    assert digits(number) == text
