"""Tables of attention: every way on one recipe and shape, against each other and against a dense matrix product.

Medians, spreads, ratios and words are computed here from the samples in the records. Nothing is compared across runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from attn_mods.tuning.typical import REFERENCE
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
included, while others compile beside it where the command has --jobs. MiB: needed by one call beyond its inputs. Of the
backward pass first and MiB are those of both passes. useful TFLOP/s: of visible pairs alone; ceiling: their share of
what a dense matrix product of the same dtype does on the same device. times as fast: as {BASELINE}, in the same run.
All of these but graph and host are of the time as called, and so is the verdict. Slower: every round agrees, and the
spreads do not overlap; where that is not so of all others, the least time is among the fastest. What is wrong has no
time; nothing is compared across runs."""


@dataclass(frozen=True)
class Measured:
    """One recipe on one shape, each pass in one run.

    Attributes:
        rows: All records of a pass in its run, for every pass.
        runs: The records of the runs themselves, as far as the files have them.
        ceilings: What a dense matrix product of its dtype took in these runs, as far as it was measured.
    """

    rows: tuple[Row, ...]
    runs: tuple[Row, ...] = ()
    ceilings: tuple[Row, ...] = ()

    @property
    def title(self) -> str:
        """Recipe, case and shape."""
        row = self.rows[0]
        shape = row["shape"]
        sizes = f"B={shape['B']} Hq={shape['Hq']} Hkv={shape['Hkv']} D={shape['head_dim']} {shape['dtype']}"
        return f"{row['recipe']}, {row['case']}: {shape['q_len']:,} x {shape['kv_len']:,}, {sizes}"

    @property
    def sources(self) -> dict[str, str]:
        """Where, with what and when it was measured, and the command that does it again; for each its passes."""
        return {_source(run): ", ".join(self._passes(run["run_id"])) for run in self.runs}

    def told_sources(self) -> list[str]:
        """The sources, each with its passes where there are several."""
        several = len(self.sources) > 1
        return [f"{passes}: {source}" if several else source for source, passes in self.sources.items()]

    def _passes(self, run_id: str) -> Iterator[str]:
        return (title for what, title in TITLES.items() if any(row["run_id"] == run_id for row in self.of(what)))

    def of(self, what: str) -> list[Row]:
        """Its records of one pass."""
        return [row for row in self.rows if row["what"] == what]

    def tables(self) -> Iterator[str]:
        """A table a pass, and what has no time with the reasons."""
        for what in TITLES:
            rows = self.of(what)
            ceiling = next((each for each in self.ceilings if rows and each["run_id"] == rows[0]["run_id"]), None)
            yield from _table(what, rows, ceiling)


def measured(records: Iterable[Row]) -> list[Measured]:
    """Every recipe and shape, each pass by one of the runs that have it.

    It is one that has the way which by any of them takes the least of what the backend flex takes in the same run; of
    several one with the baseline, then with most times, then the last.
    """
    records = list(records)
    runs = {row["run_id"]: row for row in records if row["record"] == "environment"}
    ceilings = {(row["run_id"], row["dtype"]): row for row in records if row["record"] == "ceiling"}
    found: dict[tuple[object, ...], dict[str, dict[str, list[Row]]]] = {}
    for row in records:
        if row["record"] == "attention":
            passes = found.setdefault(key_of(row), {})
            passes.setdefault(row["what"], {}).setdefault(row["run_id"], []).append(row)
    begun = {run_id: str(run["started_at"]) for run_id, run in runs.items()}
    made = []
    for passes in found.values():
        rows = tuple(row for by_run in passes.values() for row in by_run[_chosen(by_run, begun)])
        ids = dict.fromkeys((row["run_id"], row["shape"]["dtype"]) for row in rows)
        own_runs = tuple(runs[run_id] for run_id, _ in ids if run_id in runs)
        made.append(Measured(rows, own_runs, tuple(ceilings[each] for each in ids if each in ceilings)))
    return made


def _chosen(by_run: Mapping[str, Sequence[Row]], begun: Mapping[str, str]) -> str:
    """Of which run a pass of a recipe and shape is shown."""
    timed = {run_id: _timed_ways(rows) for run_id, rows in by_run.items()}
    with_reference = [ways for ways in timed.values() if REFERENCE in ways]
    fastest = min(((ms / ways[REFERENCE], way) for ways in with_reference for way, ms in ways.items()), default=None)
    wanted = [BASELINE] if fastest is None else [fastest[1], BASELINE]
    return max(by_run, key=lambda each: ([way in timed[each] for way in wanted], len(timed[each]), begun.get(each, "")))


def _timed_ways(rows: Iterable[Row]) -> dict[str, float]:
    """Median milliseconds by way: of the device, or as called where that is all there is."""
    timed = (row for row in rows if row["status"] == "ok")
    return {str(row["backend"]): median(row.get("graph_rounds_ms") or row["rounds_ms"]) for row in timed}


def _source(run: Row) -> str:
    where = run["environment"]
    device = where["card"] or f"{where['processor']}, {where['threads']} threads"
    commit = (run["code"]["git_sha"] or "?")[:7] + (", changed" if run["code"]["dirty"] else "")
    line = f"{device}, torch {where['torch']}, {run['started_at'][:10]}, commit {commit}"
    return f"{line}; run {run['run_id']}: `{run['command']}`"


def page(records: Iterable[Row]) -> str:
    """The tables of every recipe and shape."""
    all_of_them = measured(records)
    parts = [EXPLANATION] if all_of_them else ["No attention was measured."]
    for each in all_of_them:
        parts += [f"## {each.title}", *each.told_sources(), *each.tables()]
    return "\n\n".join(parts) + "\n"


def median(rounds: Sequence[Sequence[float]]) -> float:
    """Median of all samples."""
    return float(numpy.median(numpy.concatenate([numpy.asarray(each) for each in rounds])))


def spread(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """10th and 90th percentile of all samples."""
    low, high = numpy.percentile(numpy.concatenate([numpy.asarray(each) for each in rounds]), (10, 90))
    return float(low), float(high)


def verdict(row: Row, rows: Sequence[Row], times: str = "rounds_ms") -> str:
    """How a way stands to the others of its pass: "fastest", "slower", or "among the fastest".

    Args:
        row: The way.
        rows: All ways that have such times, itself among them.
        times: Which times.
    """
    best = min(rows, key=lambda each: median(each[times]))
    if _is_slower(row, best, times):
        return "slower"
    alone = all(each is best or _is_slower(each, best, times) for each in rows)
    return "fastest" if alone else "among the fastest"


def _is_slower(row: Row, best: Row, times: str) -> bool:
    """Whether every round agrees and the spreads do not overlap."""
    mine, theirs = row[times], best[times]
    agree = all(numpy.median(a) > numpy.median(b) for a, b in zip(mine, theirs, strict=True))
    return agree and spread(mine)[0] > spread(theirs)[1]


def teraflops(row: Row) -> float:
    """Useful TFLOP/s of a row: of visible pairs alone."""
    flops = FLOPS_PER_PAIR[row["what"]] * row["pairs_kept"] * row["shape"]["head_dim"]
    return float(flops / median(row["rounds_ms"]) / 1e9)


def _table(what: str, rows: Sequence[Row], ceiling: Row | None) -> Iterator[str]:
    right = [row for row in rows if row["status"] == "ok"]
    others = [row for row in rows if row["status"] != "ok"]
    if right:
        baseline = next((row for row in right if row["backend"] == BASELINE), None)
        on_card = any("graph_rounds_ms" in row or "host_ms" in row for row in right)
        columns = ["backend", "ms", "p10-p90", *(["graph", "host"] if on_card else []), "first, s", "MiB"]
        columns += ["useful TFLOP/s", "ceiling", "times as fast", "verdict"]
        lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 2) + " --- |"]
        for row in sorted(right, key=lambda row: median(row["rounds_ms"])):
            lines.append(f"| {' | '.join(_cells(row, right, baseline, ceiling, on_card))} |")
        yield f"{TITLES[what]}:\n\n" + "\n".join(lines)
    if others:
        listed = "\n".join(f"- {row['backend']}, {row['status']}: {row['message']}" for row in others)
        yield f"{TITLES[what]}, without a time:\n\n{listed}"


def _cells(row: Row, rows: Sequence[Row], baseline: Row | None, ceiling: Row | None, on_card: bool) -> list[str]:
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
    return [*cells, verdict(row, rows)]


def matmul_teraflops(ceiling: Row) -> float:
    """TFLOP/s of the dense matrix product."""
    return float(2 * ceiling["size"] ** 3 / median(ceiling["rounds_ms"]) / 1e9)
