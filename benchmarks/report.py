"""Tables from records: medians, spread and ratios within one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy
from rich.table import Table


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
        f"torch {where['torch']}, {environment['started_at'][:10]}"
    )
    for column in ("rule", "tokens", "ours, ms (p10-p90)", "peak, MiB", "torch eager, ms", "peak, MiB", "ratio"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for ours in (cell for cell in cells if cell["backend"] == "attn_mods"):
        same = ("recipe", "shape")
        theirs = next(c for c in cells if c["backend"] == "torch_eager" and all(c[k] == ours[k] for k in same))
        ratio = f"{median(theirs) / median(ours):,.0f}" if ours["status"] == theirs["status"] == "ok" else ""
        table.add_row(ours["recipe"], f"{ours['shape']['q_len']:,}", *_times(ours, spread=True), *_times(theirs), ratio)
    return table


def _times(cell: dict[str, Any], spread: bool = False) -> tuple[str, str]:
    if cell["status"] != "ok":
        return f"{cell['status']}: {cell['message']}", ""
    low, high = numpy.percentile(cell["samples_ms"], (10, 90))
    shown = f"{median(cell):,.2f}" + (f" ({low:,.2f}-{high:,.2f})" if spread else "")
    return shown, f"{cell['peak_bytes'] / 2**20:,.0f}"
