"""Tables from records: medians, spread and ratios within one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy
from rich import box
from rich.table import Table

MESSAGES = ("ours ms", "torch ms")
"""Columns that may be broken over lines: they hold the reason where there is no time."""

NOT_RUN = {"status": "not run", "message": ""}


def median(cell: dict[str, Any]) -> float:
    """Median of the samples in milliseconds."""
    return float(numpy.median(cell["samples_ms"]))


def block_mask_table(records: Iterable[dict[str, Any]]) -> Table:
    """BlockMask building of one run: a row per rule and length, the ratio to eager torch in the same run."""
    records = list(records)
    environment = next(r for r in records if r["record"] == "environment")
    cells = [r for r in records if r["record"] == "cell" and r["what"] == "block_mask_build"]
    where = environment["environment"]
    table = Table(
        title=f"BlockMask building on {where['card'] or where['processor']}, {where['threads']} threads, "
        f"torch {where['torch']}, {environment['started_at'][:10]}",
        caption="ms: median, and 10th and 90th percentile; MiB: most memory of one call; ratio: torch eager to ours",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for column in ("rule", "tokens", "ours ms", "p10-p90", "MiB", "torch ms", "MiB", "ratio"):
        justify: Literal["left", "right"] = "left" if column == "rule" else "right"
        table.add_column(
            column, justify=justify, no_wrap=column not in MESSAGES, min_width=len(column), overflow="fold"
        )
    for ours in (cell for cell in cells if cell["backend"] == "attn_mods"):
        same = ("recipe", "shape")
        pairs = (c for c in cells if c["backend"] == "torch_eager" and all(c[k] == ours[k] for k in same))
        theirs = next(pairs, NOT_RUN)
        ratio = _two_digits(median(theirs) / median(ours)) if ours["status"] == theirs["status"] == "ok" else ""
        ours_ms, ours_peak = _time_and_memory(ours)
        theirs_ms, theirs_peak = _time_and_memory(theirs)
        tokens = f"{ours['shape']['q_len']:,}"
        table.add_row(ours["recipe"], tokens, ours_ms, _spread(ours), ours_peak, theirs_ms, theirs_peak, ratio)
    return table


def _time_and_memory(cell: dict[str, Any]) -> tuple[str, str]:
    if cell["status"] != "ok":
        return ": ".join(part for part in (cell["status"], cell["message"]) if part), ""
    return _milliseconds(median(cell)), f"{cell['peak_bytes'] / 2**20:,.0f}"


def _spread(cell: dict[str, Any]) -> str:
    if cell["status"] != "ok":
        return ""
    low, high = numpy.percentile(cell["samples_ms"], (10, 90))
    return f"{_milliseconds(low)}-{_milliseconds(high)}"


def _milliseconds(value: float) -> str:
    """Three digits or more, so that columns stay narrow."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def _two_digits(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
