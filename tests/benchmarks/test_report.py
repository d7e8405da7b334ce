"""The table of the golden records: medians, spread, ratios, and reasons where there is no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import record, report

RECORDS = list(record.read(Path(__file__).with_name("golden.jsonl")))


def printed(width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(report.block_mask_table(RECORDS))
    return capture.get()


@pytest.mark.parametrize(
    "cells",
    [
        # 300, 400 and 500 over 1, 2 and 3
        ["causal", "4,096", "2.00", "1.20-2.80", "8", "400", "160", "200"],
        ["causal", "131,072", "2,000", "1,200-2,800", "64", "skipped: needs about 160 GiB, 10 are free"],
        ["sliding_window", "4,096", "wrong: kv_indices differs", "100", "160"],
        ["document_causal", "4,096", "40.0", "40.0-40.0", "16", "failed: MemoryError: out of memory"],
        # a loss is shown as one
        ["document_causal", "16,384", "20.0", "20.0-20.0", "16", "10.0", "16", "0.5"],
    ],
    ids=["ratio", "skipped", "wrong", "failed", "slower"],
)
def test_rows(cells: list[str]) -> None:
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in printed(200).splitlines()]
    assert cells in rows


def test_the_title_says_where_and_when() -> None:
    assert "BlockMask building on Example processor, 2 threads, torch 2.13.0, 2026-01-02" in printed(200)


def test_no_number_is_cut_in_a_terminal_of_80_columns() -> None:
    lines = printed(80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "…" not in text
    for shown in ("document_causal", "sliding_window", "131,072", "1,200-2,800", "p10-p90", "torch ms", "ratio", "0.5"):
        assert shown in text


def test_an_unpaired_cell_is_shown_without_a_ratio() -> None:
    alone = [row for row in RECORDS if row["record"] == "environment" or row["backend"] == "attn_mods"]
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(report.block_mask_table(alone))
    (line,) = (line for line in capture.get().splitlines() if "131,072" in line)
    assert line.split() == ["causal", "131,072", "2,000", "1,200-2,800", "64", "not", "run"]
