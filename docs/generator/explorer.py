"""The data of a recipe's explorer: frames computed by the recipe, and programs that make what they show, to replay."""

from __future__ import annotations

from typing import Any

from attn_mods.entry import Entry
from docs.generator.axes import Explorer
from docs.generator.constructors import constructor
from docs.generator.frames import extremes, heat, pack_bits, pack_levels


class _Frames:
    """The frames of an entry, equal ones once, and of a score what is said of each."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.extremes: dict[tuple[str, ...], int] = {}

    def number(self, values: Any) -> int:
        """The number of a frame, which is added if it is new."""
        key = (pack_bits(values),) if self.entry.kind == "mask" else self._score(values)
        return self.numbers.setdefault(key, len(self.numbers))

    def _score(self, values: Any) -> tuple[Any, ...]:
        shown = heat(values)
        rows = self.extremes.setdefault(tuple(extremes(values)), len(self.extremes))
        return pack_levels(shown.levels), float(f"{shown.low:.4g}"), float(f"{shown.high:.4g}"), rows

    def data(self) -> dict[str, Any]:
        """The frames and, of a score, their ranges and the rows' extremes, told once for all frames that share them."""
        keys = list(self.numbers)
        if self.entry.kind == "mask":
            return {"frames": [bits for (bits,) in keys]}
        return {
            "frames": [levels for levels, *_ in keys],
            "ranges": [[low, high] for _, low, high, _ in keys],
            "extremes": [list(rows) for rows in self.extremes],
            "extremes_of_frame": [rows for *_, rows in keys],
        }


def explorer_data(explorer: Explorer) -> dict[str, Any]:
    """All frames of an entry as one document: equal frames once, and an index per length and setting."""
    frames = _Frames(explorer.entry)
    lengths = [_length(explorer, frames, *pair) for pair in explorer.lengths]
    data: dict[str, Any] = {
        "name": explorer.entry.name,
        "kind": explorer.entry.kind,
        "axes": [{"name": axis.name, "values": list(axis.values), "start": axis.start} for axis in explorer.axes],
        "lengths": lengths,
        **frames.data(),
    }
    return data if explorer.entry.kind == "mask" else {**data, "shown_on": explorer.shown_on}


def _length(explorer: Explorer, frames: _Frames, q_len: int, kv_len: int) -> dict[str, Any]:
    """The frame of every setting at one length, and the program of every case, whose name does not say it all."""
    matrices = (explorer.matrix(setting, q_len, kv_len) for setting in explorer.settings())
    numbers = [-1 if values is None else frames.number(values) for values in matrices]
    data = {"q_len": q_len, "kv_len": kv_len, "frames": numbers}
    cases = next((axis.values for axis in explorer.axes if axis.name == "case"), ())
    return {**data, "programs": [_program(explorer, case, q_len, kv_len) for case in cases]} if cases else data


def _program(explorer: Explorer, case: str, q_len: int, kv_len: int) -> str:
    """Python that makes what is shown of a case at one length.

    Raises:
        LookupError: The case cannot be made at this length, though the explorer shows it.
    """
    entry = explorer.entry
    example = explorer.example({"case": case}, q_len, kv_len)
    if example is None:
        raise LookupError(f"{entry.name}: the case {case} is shown at {q_len} x {kv_len} but cannot be made")
    source = f'am.info("{entry.name}").cases["{case}"].make({q_len}, {kv_len}, "cpu")'
    made = constructor(entry, example.part, source)
    code = [*made.lines, f"{entry.kind} = {made.expression}"]
    return "\n".join([*_imports(code, f"{entry.kind}s"), "", *code])


def _imports(code: list[str], module: str) -> list[str]:
    """The imports that the lines need."""
    wanted = {"torch.": "import torch", "am.": "import attn_mods as am"}
    needed = [line for prefix, line in wanted.items() if any(f" {prefix}" in each for each in code)]
    return [*needed, f"from attn_mods import {module}"]
