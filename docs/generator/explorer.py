"""The data of a recipe's explorer: frames computed by the recipe, for a browser to replay."""

from __future__ import annotations

from typing import Any

from attn_mods.entry import Entry
from docs.generator.axes import Axis, Explorer
from docs.generator.constructors import constructor
from docs.generator.frames import heat, pack_bits, pack_levels


def explorer_data(explorer: Explorer) -> dict[str, Any]:
    """All frames of an entry as one document: equal frames once, and an index per length and setting."""
    frames: dict[str, int] = {}
    ranges: list[list[float]] = []
    lengths = []
    for q_len, kv_len in explorer.lengths:
        index = []
        for setting in explorer.settings():
            values = explorer.matrix(setting, q_len, kv_len)
            index.append(-1 if values is None else _stored(explorer.entry, values, frames, ranges))
        lengths.append({"q_len": q_len, "kv_len": kv_len, "frames": index})
    data: dict[str, Any] = {
        "name": explorer.entry.name,
        "kind": explorer.entry.kind,
        "axes": [_axis(axis, explorer) for axis in explorer.axes],
        "lengths": lengths,
        "frames": [key.partition(" ")[0] for key in frames],
    }
    if explorer.entry.kind == "score":
        data |= {"shown_on": explorer.shown_on, "ranges": ranges}
    return data


def _stored(entry: Entry, values: Any, frames: dict[str, int], ranges: list[list[float]]) -> int:
    """The number of a frame, which is added if it is new."""
    if entry.kind == "mask":
        return frames.setdefault(pack_bits(values), len(frames))
    shown = heat(values)
    span = [float(f"{shown.low:.4g}"), float(f"{shown.high:.4g}")]
    key = f"{pack_levels(shown.levels)} {span}"
    if key not in frames:
        ranges.append(span)
    return frames.setdefault(key, len(frames))


def _axis(axis: Axis, explorer: Explorer) -> dict[str, Any]:
    data: dict[str, Any] = {"name": axis.name, "values": list(axis.values), "start": axis.start}
    if axis.name == "case":
        data["programs"] = [_program(explorer, case) for case in axis.values]
    return data


def _program(explorer: Explorer, case: str) -> str:
    """The parameters of a case as Python at the length that is shown first; empty where a table is too large."""
    lengths = explorer.lengths[min(1, len(explorer.lengths) - 1)]
    example = explorer.example({"case": case}, *lengths)
    if example is None:
        return ""
    try:
        made = constructor(explorer.entry, example.part)
    except LookupError:
        return ""
    return "\n".join([*made.lines, made.expression])
