"""Tables of attention: every way on one recipe and shape, against each other and against a dense matrix product.

Medians, spreads, ratios and words are computed here from the samples in the records. Nothing is compared across runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy

from benchmarks.attention.measure import key_of
from benchmarks.attention.ways import BASELINE
from benchmarks.bars import digits

Row = dict[str, Any]
TITLES = {"forward": "Forward", "backward": "Backward", "forward_backward": "Forward and backward"}
FLOPS_PER_PAIR = {"forward": 4, "backward": 10, "forward_backward": 14}
"""Multiplications and additions of one visible pair and one element of a head; the backward pass computes the scores
again."""

EXPLANATION = f"""\
In brackets is the mode of torch.compile. ms: median as called, with the 10th and the 90th percentile of all rounds.
graph: median as a replayed CUDA graph; host: how long the host is busy with a call. first: the first call, compilation
included. MiB: needed by one call beyond its inputs. useful TFLOP/s: of visible pairs alone; ceiling: their share of
what a dense matrix product of the same dtype does on the same device. times as fast: as {BASELINE}, in the same run. A
verdict is given where every round agrees and the spreads do not overlap. What is wrong has no time; nothing is compared
across runs."""


def page(records: Iterable[Row]) -> str:
    """All runs, each recipe and shape by its last whole measurement."""
    records = list(records)
    runs = {row["run_id"]: row for row in records if row["record"] == "environment"}
    ceilings = {(row["run_id"], row["dtype"]): row for row in records if row["record"] == "ceiling"}
    measured: dict[tuple[object, ...], dict[str, list[Row]]] = {}
    for row in records:
        if row["record"] == "attention":
            measured.setdefault(key_of(row), {}).setdefault(row["run_id"], []).append(row)
    parts = [EXPLANATION] if measured else ["No attention was measured."]
    for by_run in measured.values():
        run_id = max(by_run, key=lambda each: len(by_run[each]))
        rows = by_run[run_id]
        parts.append(_heading(rows[0], runs.get(run_id)))
        for what in TITLES:
            parts += _table(what, [row for row in rows if row["what"] == what], ceilings.get((run_id, _dtype(rows[0]))))
    return "\n\n".join(parts) + "\n"


def median(rounds: Sequence[Sequence[float]]) -> float:
    """Median of all samples."""
    return float(numpy.median(numpy.concatenate([numpy.asarray(each) for each in rounds])))


def spread(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """10th and 90th percentile of all samples."""
    low, high = numpy.percentile(numpy.concatenate([numpy.asarray(each) for each in rounds]), (10, 90))
    return float(low), float(high)


def verdict(row: Row, best: Row) -> str:
    """How a way stands to the fastest: "fastest", "slower", or "no difference seen"."""
    if row is best:
        return "fastest"
    mine, theirs = row["rounds_ms"], best["rounds_ms"]
    agree = all(numpy.median(a) > numpy.median(b) for a, b in zip(mine, theirs, strict=True))
    apart = spread(mine)[0] > spread(theirs)[1]
    return "slower" if agree and apart else "no difference seen"


def teraflops(row: Row) -> float:
    """Useful TFLOP/s of a row: of visible pairs alone."""
    flops = FLOPS_PER_PAIR[row["what"]] * row["pairs_kept"] * row["shape"]["head_dim"]
    return float(flops / median(row["rounds_ms"]) / 1e9)


def _dtype(row: Row) -> str:
    dtype: str = row["shape"]["dtype"]
    return dtype


def _heading(row: Row, run: Row | None) -> str:
    shape = row["shape"]
    sizes = f"B={shape['B']} Hq={shape['Hq']} Hkv={shape['Hkv']} D={shape['head_dim']} {shape['dtype']}"
    title = f"## {row['recipe']}, {row['case']}: {shape['q_len']:,} x {shape['kv_len']:,}, {sizes}"
    if run is None:
        return title
    where = run["environment"]
    device = where["card"] or f"{where['processor']}, {where['threads']} threads"
    line = f"{device}, torch {where['torch']}, {run['started_at'][:10]}, commit {(run['code']['git_sha'] or '?')[:7]}"
    return f"{title}\n\n{line}; run {run['run_id']}: `{run['command']}`"


def _table(what: str, rows: Sequence[Row], ceiling: Row | None) -> Iterator[str]:
    right = [row for row in rows if row["status"] == "ok"]
    others = [row for row in rows if row["status"] != "ok"]
    if right:
        best = min(right, key=lambda row: median(row["rounds_ms"]))
        baseline = next((row for row in right if row["backend"] == BASELINE), None)
        on_card = any("graph_rounds_ms" in row or "host_ms" in row for row in right)
        columns = ["backend", "ms", "p10-p90", *(["graph", "host"] if on_card else []), "first, s", "MiB"]
        columns += ["useful TFLOP/s", "ceiling", "times as fast", "verdict"]
        lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 2) + " --- |"]
        for row in sorted(right, key=lambda row: median(row["rounds_ms"])):
            lines.append(f"| {' | '.join(_cells(row, best, baseline, ceiling, on_card))} |")
        yield f"{TITLES[what]}:\n\n" + "\n".join(lines)
    if others:
        listed = "\n".join(f"- {row['backend']}, {row['status']}: {row['message']}" for row in others)
        yield f"{TITLES[what]}, without a time:\n\n{listed}"


def _cells(row: Row, best: Row, baseline: Row | None, ceiling: Row | None, on_card: bool) -> list[str]:
    milliseconds, (low, high) = median(row["rounds_ms"]), spread(row["rounds_ms"])
    named = row["backend"] + (f" ({row['mode']})" if "mode" in row else "")
    cells = [named, digits(milliseconds), f"{digits(low)}-{digits(high)}"]
    if on_card:
        graph = row.get("graph_rounds_ms")
        host = row.get("host_ms")
        cells += [digits(median(graph)) if graph else "", digits(host) if host else ""]
    cells += [digits(row["first_ms"] / 1000), f"{row['peak_bytes'] / 2**20:,.0f}", digits(teraflops(row))]
    cells.append("" if ceiling is None else f"{teraflops(row) / matmul_teraflops(ceiling):.1%}")
    cells.append("" if baseline is None else f"{median(baseline['rounds_ms']) / milliseconds:.2f}x")
    return [*cells, verdict(row, best)]


def matmul_teraflops(ceiling: Row) -> float:
    """TFLOP/s of the dense matrix product."""
    return float(2 * ceiling["size"] ** 3 / median(ceiling["rounds_ms"]) / 1e9)
