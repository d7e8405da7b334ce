"""How fast the backends were measured on a card: what "auto" and ``explain`` go by.

One file a card, ``<card>.json`` beside this one, made from records by ``python -m benchmarks tune``. A recipe on sizes
that were not measured goes by what the nearest that were lead one to expect; a recipe of a name that was not, by what
others like it took (``typical``); a card without a file, by the fixed order of ``attn_mods.backends``.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from attn_mods.backends import ALL, Shapes

FOLDER = Path(__file__).parent
FORWARD, TRAINING = "forward", "forward_backward"
STANDS_IN = {"float16": "bfloat16"}
REMEDY = "make it from records by python -m benchmarks tune, or remove it and a fixed order decides"
LONGEST_MS, LARGEST_SIZE = 1e9, 2**62
"""What a table holds is below: eleven days, and a number of 64 bits."""

OTHER_HALF_TYPE = 0.5
"""How far off a measurement in the other half type is, in doublings of a size."""


@dataclass(frozen=True)
class Measured:
    """One recipe on one shape.

    Attributes:
        recipe: Its name.
        what: "forward", or "forward_backward" where gradients are wanted.
        shapes: The sizes.
        dtype: Of q, k and v, by torch's name.
        has_score: Whether the recipe has a score.
        ms: Median milliseconds of a call, by backend; those that are not in it did not compute it.
        device_ms: How long the device is at work in a call, by backend. For one that is missing ``ms`` stands in.
        host_ms: How long the host is busy with a call, by backend, corrected for what else it was busy with and never
            more than ``ms``. For one that is missing 0 stands in.
    """

    recipe: str
    what: str
    shapes: Shapes
    dtype: str
    has_score: bool
    ms: dict[str, float]
    device_ms: dict[str, float] = field(default_factory=dict)
    host_ms: dict[str, float] = field(default_factory=dict)

    def fastest_first(self, shapes: Shapes) -> list[str]:
        """The backends in the order of what a call on these sizes is expected to take.

        The device has more to do by as many times as there are more products of queries and keys, the host never, and
        a call takes as long as the slower of the two. Half of the device's time is added: host times of two backends
        may differ by nothing but chance.
        """
        times = _work(shapes) / _work(self.shapes)
        device = {name: self.device_ms.get(name, ms) * times for name, ms in self.ms.items()}
        expected = {name: max(ms, self.host_ms.get(name, 0.0)) + ms / 2 for name, ms in device.items()}
        return sorted(expected, key=expected.__getitem__)

    def times(self, name: str) -> str:
        """What a call with one backend took, and of it the device and the host, in words."""
        parts = {"device": self.device_ms.get(name), "host": self.host_ms.get(name)}
        split = ", ".join(f"{part} {ms:.3g}" for part, ms in parts.items() if ms is not None)
        return f"{self.ms[name]:.3g} ms" + f" ({split})" * bool(split)

    @property
    def sizes(self) -> str:
        """Sizes and dtype in words."""
        shapes = self.shapes
        lengths = f"{shapes.q_len:,} x {shapes.kv_len:,}"
        return f"{lengths}, B={shapes.batch} Hq={shapes.q_heads} D={shapes.head_dim}, {self.dtype}"

    def __str__(self) -> str:
        return f"{self.recipe} with the parameters of its benchmark, {self.sizes}"


@dataclass(frozen=True, eq=False)
class Table:
    """What was measured on one kind of card.

    Attributes:
        card: Its name, as torch gives it.
        torch: The version of torch.
        rows: The measurements.
        runs: The runs they were made from.
    """

    card: str
    torch: str
    rows: tuple[Measured, ...]
    runs: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)
def nearest(table: Table, recipe: str, shapes: Shapes, dtype: torch.dtype, training: bool) -> Measured | None:
    """The measurement of a recipe of that name and pass whose sizes are nearest; None if there is none.

    Args:
        table: The measurements.
        recipe: Name of the recipe.
        shapes: Sizes of the call.
        dtype: Of q, k and v.
        training: Whether gradients are wanted.
    """
    own = (row for row in rows_for(table, dtype, training) if row.recipe == recipe)
    return min(own, key=lambda row: distance(row, shapes, dtype), default=None)


def rows_for(table: Table, dtype: torch.dtype, training: bool) -> Iterator[Measured]:
    """The measurements that say something of calls in a dtype, with gradients or without.

    Kernels for float16 and bfloat16 do the same work, and bfloat16 stands in for float16. Not the other way round,
    since a backend that lacks float16 would be thought to lack bfloat16 too.
    """
    what, name = TRAINING if training else FORWARD, _name(dtype)
    names = (name, STANDS_IN.get(name, name))
    return (row for row in table.rows if row.what == what and row.dtype in names)


def distance(row: Measured, shapes: Shapes, dtype: torch.dtype) -> tuple[float, int]:
    """How far off a measurement is, the less the nearer.

    One that stands in is a little further off. Of two as near the larger comes first: the smaller may have shown the
    host's time alone.
    """
    return _distance(row.shapes, shapes) + OTHER_HALF_TYPE * (row.dtype != _name(dtype)), -_work(row.shapes)


def file_name(card: str) -> str:
    """The file of a card."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-") + ".json"


@functools.cache
def table_for(device: torch.device) -> Table | None:
    """The table of the card at hand; None for a CPU, and for a card that was not measured.

    Raises:
        ValueError: The file of that card is damaged, or of another.
    """
    if device.type != "cuda":
        return None
    card = torch.cuda.get_device_name(device)
    path = FOLDER / file_name(card)
    table = read(path)
    if table is not None and table.card != card:
        raise ValueError(f"{path}: the table must be of {card}, got one of {table.card}; {REMEDY}")
    return table


@functools.cache
def read(path: Path) -> Table | None:
    """The table in a file; None if there is no file.

    Raises:
        ValueError: The file is damaged: what it leads to would be another choice than was measured.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(_row(row) for row in content["rows"])
        if len({(row.recipe, row.what, row.shapes, row.dtype) for row in rows}) != len(rows) or not rows:
            raise ValueError("no row, or one twice")
        return Table(str(content["card"]), str(content["torch"]), rows, tuple(map(str, content.get("runs", []))))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: it must be a table of measurements, got {error!r}; {REMEDY}") from error


def _row(read: Mapping[str, Any]) -> Measured:
    row = Measured(**{**read, "shapes": Shapes(*read["shapes"])})
    wrong = next(_wrong(row), None)
    if wrong is not None:
        raise ValueError(f"{wrong} of {row.recipe}")
    return row


def _wrong(row: Measured) -> Iterator[str]:
    """What of a row cannot have been measured."""
    by_backend = row.ms, row.device_ms, row.host_ms
    if not all(isinstance(times, dict) for times in by_backend) or not row.ms:
        yield "no times by backend"
        return
    if unknown := row.ms.keys() - {backend.name for backend in ALL}:
        yield f"times of {', '.join(sorted(unknown))}, which is no backend,"
    if any(times.keys() - row.ms.keys() for times in by_backend):
        yield "parts of a time that is not there"
    if not all(type(ms) in (float, int) and 0 < ms < LONGEST_MS for times in by_backend for ms in times.values()):
        yield "times that are no milliseconds"
    if not all(type(size) is int and 0 < size < LARGEST_SIZE for size in astuple(row.shapes)):
        yield "sizes that are none"
    if row.what not in (FORWARD, TRAINING) or not isinstance(getattr(torch, str(row.dtype), None), torch.dtype):
        yield "an unknown pass or dtype"
    if type(row.recipe) is not str or type(row.has_score) is not bool:
        yield "an unknown kind"


def write(path: Path, table: Table) -> None:
    """Write a table, a row a line, so that a change of one is a line of difference."""
    rows = [
        {
            "recipe": row.recipe,
            "what": row.what,
            "shapes": astuple(row.shapes),
            "dtype": row.dtype,
            "has_score": row.has_score,
            "ms": _rounded(row.ms),
            "device_ms": _rounded(row.device_ms),
            "host_ms": _rounded(row.host_ms),
        }
        for row in table.rows
    ]
    head = json.dumps({"card": table.card, "torch": table.torch, "runs": table.runs})[:-1]
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    read.cache_clear()
    table_for.cache_clear()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{ms:.4g}") for name, ms in sorted(times.items())}


def _work(shapes: Shapes) -> int:
    """Products of numbers, up to a factor, if every pair is visible."""
    heads = shapes.batch * shapes.q_heads
    return max(1, heads * shapes.q_len * shapes.kv_len * (shapes.head_dim + shapes.value_dim))


def _distance(one: Shapes, other: Shapes) -> float:
    """How many times two sizes must be doubled to be the other's, all added up; lengths and head size count most."""
    pairs = zip(astuple(one), astuple(other), strict=True)
    batch, q_heads, kv_heads, *others = (abs(math.log2(max(a, 1) / max(b, 1))) for a, b in pairs)
    return sum(others) + (batch + q_heads + kv_heads) / 4
