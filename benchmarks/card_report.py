"""What was measured on cards, as a page of Markdown: times, ratios, memory, launches, and the bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy

from benchmarks.bars import CLOSURE, ENTRY, Bar, Cells, bars, digits, median

Records = list[dict[str, Any]]
MEBIBYTE = 2**20

TITLES = {
    "attn_mods": "entry",
    "attn_mods_closure": "closure",
    "attn_mods_compact": "entry, compact",
    "attn_mods_closure_compact": "closure, compact",
    "attn_mods_full": "entry, full",
    "attn_mods_closure_full": "closure, full",
    "attn_mods_first": "first mask",
    "attention_gym": "attention-gym",
    "torch_eager": "torch eager",
    "torch_compiled": "torch compiled",
    "torch_compiled_cold": "torch, compiling",
}
EXPLANATION = """\
Milliseconds are the median of one call by the wall, until the card is done; parameters lie on the card beforehand and
are fresh in every call. "entry" is `block_mask` of a mask of the catalogue, "closure" hands the same rule as a
user's function to `create_block_mask`, "first mask" is a closure whose text is new to the process, "torch, compiling"
is the first call of the compiled function. Memory is MiB: the most that one call needed, and the lists it returned.
Launches are kernels on the card. What is not equal to the truth gets no time. A short call is bound by the host, whose
speed changes with what else it does: a loop of 100 calls of a Python function, timed beside every sample, says how fast
it was."""

VERSIONS = (("driver", "driver"), ("cuda", "CUDA"), ("torch", "torch"), ("triton", "Triton"), ("python", "Python"))


def page(runs: Iterable[Records]) -> str:
    """All runs, those of one card together."""
    by_card: dict[str, list[Records]] = {}
    for records in runs:
        by_card.setdefault(_header(records)["environment"]["card"] or "no card", []).append(records)
    parts = []
    for card, its_runs in by_card.items():
        parts.append(f"## {card}")
        parts += [part for records in its_runs for part in _run(records)]
    return "\n\n".join(parts) + "\n"


def _header(records: Records) -> dict[str, Any]:
    return next(row for row in records if row["record"] == "environment")


def _run(records: Records) -> Iterator[str]:
    cells = {what: [r for r in records if r.get("what") == f"block_mask_{what}"] for what in ("build", "decode")}
    if cells["build"]:
        yield from (f"### {_masks(cells['build'])}", _where(records), EXPLANATION)
        yield from _build(records)
    if cells["decode"]:
        yield from ("### The BlockMask of one query after the other", _where(records))
        yield _decode(cells["decode"])
    yield from _reasons([*cells["build"], *cells["decode"]])


def _masks(cells: Records) -> str:
    """What a run built, for a heading."""
    names = ", ".join(dict.fromkeys(row["recipe"] for row in cells))
    lengths = sorted({row["shape"]["kv_len"] for row in cells})
    span = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    return f"BlockMasks of {span} tokens: {names}"


def _date(records: Records) -> str:
    return str(_header(records)["started_at"])[:10]


def _where(records: Records) -> str:
    header = _header(records)
    environment, code = header["environment"], header["code"]
    versions = [f"{title} {environment[name]}" for name, title in VERSIONS if environment.get(name)]
    if environment.get("attn_gym"):
        versions.append(f"attention-gym {environment['attn_gym']}")
    state = {True: ", changed", False: "", None: ""}[code["dirty"]]
    commit = f"commit {code['git_sha'][:12]}{state}" if code["git_sha"] else "commit not known"
    return f"{_date(records)}; {', '.join(versions)}; {commit}; run {header['run_id']}: `{header['command']}`"


def _build(records: Records) -> Iterator[str]:
    cells = Cells(records)
    present = {method for _, _, method in cells.all}
    methods = [method for method in TITLES if method in present]
    masks = list(dict.fromkeys(mask for mask, _, _ in cells.all))
    places = sorted({(mask, length) for mask, length, _ in cells.all}, key=lambda at: (masks.index(at[0]), at[1]))
    ratios = [method for method in (ENTRY, CLOSURE) if method in present]

    def times(mask: str, length: int) -> list[str]:
        ratio = (cells.faster(mask, length, method).number for method in ratios)
        shown = [_shown(cells, mask, length, method, _milliseconds) for method in methods]
        return shown + [f"{digits(number)}x" if number is not None else "" for number in ratio]

    def figures(of: Callable[[dict[str, Any]], str]) -> Callable[[str, int], list[str]]:
        return lambda mask, length: [_shown(cells, mask, length, method, of) for method in methods]

    titles = [TITLES[method] for method in methods]
    faster = [f"{TITLES[method]} to torch compiled" for method in ratios]
    yield "Time, ms, and how many times faster than compiled torch in the same run:"
    yield _by_place(places, [*titles, *faster], times)
    yield "Most memory of a call / its lists, MiB:"
    yield _by_place(places, titles, figures(_memory))
    yield "Launches:"
    yield _by_place(places, titles, figures(lambda row: str(row.get("launches", ""))))
    if any("host_us" in row for row in cells.all.values()):
        yield "Median of the Python loop beside the samples, microseconds:"
        yield _by_place(places, titles, figures(lambda row: digits(row["host_us"]) if "host_us" in row else ""))
    yield "What it is held to:"
    yield from bars_table(bars(records))


def _by_place(places: Sequence[tuple[str, int]], titles: Sequence[str], row_of: Callable[[str, int], list[str]]) -> str:
    return markdown_table(["mask", "tokens", *titles], [[m, f"{n:,}", *row_of(m, n)] for m, n in places])


def _shown(cells: Cells, mask: str, length: int, method: str, of: Callable[[dict[str, Any]], str]) -> str:
    row = cells.all.get((mask, length, method))
    if row is None:
        return ""
    return of(row) if row["status"] == "ok" else _status(row)


def _milliseconds(row: dict[str, Any]) -> str:
    return digits(median(row))


def _memory(row: dict[str, Any]) -> str:
    return f"{digits(row['peak_bytes'] / MEBIBYTE)} / {digits(row['lists_bytes'] / MEBIBYTE)}"


def _status(row: dict[str, Any]) -> str:
    return str(row["status"]).replace("_", " ")


def bars_table(held_to: Sequence[Bar]) -> Iterator[str]:
    """The table of the bars that a run says something of, and a sentence that names the others."""
    rows = [
        [each.subject, each.required, each.verdict(each.entry), each.verdict(each.closure)]
        for each in held_to
        if not each.is_silent
    ]
    if rows:
        yield markdown_table(["what", "bar", "entry", "closure"], rows, names=4)
    silent = [each.subject for each in held_to if each.is_silent]
    if silent:
        yield f"Not measured in this run: {_named(silent)}."


def _named(subjects: Sequence[str]) -> str:
    """The subjects of bars, those together that lack the same quantities."""
    quantities: dict[str, list[str]] = {}
    for subject in subjects:
        place, _, quantity = subject.rpartition(": ")
        quantities.setdefault(place, []).append(f"*{quantity}*")
    places: dict[str, list[str]] = {}
    for place, of_place in quantities.items():
        places.setdefault(" and ".join(of_place), []).append(place)
    return "; and ".join(f"{what} of {'; '.join(where)}" if any(where) else what for what, where in places.items())


def _decode(rows: Records) -> str:
    lines = []
    for row in rows:
        place = [row["recipe"], f"{row['shape']['kv_len']:,}"]
        if row["status"] != "ok":
            lines.append([*place, _status(row), "", "", "", ""])
            continue
        low, middle, high = (digits(1000 * value) for value in numpy.percentile(row["samples_ms"], (10, 50, 90)))
        counts = (str(row.get(name, "")) for name in ("launches", "compilations"))
        lines.append([*place, middle, f"{low}-{high}", str(len(row["samples_ms"])), *counts])
    return markdown_table(
        ["mask", "keys", "microseconds a step", "p10-p90", "steps", "launches", "compilations"], lines
    )


def _reasons(cells: Records) -> Iterator[str]:
    """Why cells have no time, equal reasons together."""
    reasons: dict[str, list[str]] = {}
    for row in cells:
        if row["status"] != "ok":
            reason = f"{TITLES.get(row['backend'], row['backend'])}, {_status(row)}: {row['message']}"
            reasons.setdefault(reason, []).append(f"{row['recipe']} {row['shape']['kv_len']:,}")
    if reasons:
        yield "Without a time:"
        yield "\n".join(f"- {reason} ({'; '.join(places)})" for reason, places in reasons.items())


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """A table of Markdown; the columns after those of names hold numbers, which stand on the right."""
    rule = ["---"] * names + ["---:"] * (len(titles) - names)
    return "\n".join("| " + " | ".join(_cell(each) for each in row) + " |" for row in (titles, rule, *rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
