"""Python that makes a mask or score anew: what a page shows to be copied, and a test runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.score import Score

WRITTEN_OUT = 256
"""Tables of whole numbers up to this many values are written out; others stand for what a user has."""

FRACTIONS_WRITTEN_OUT = 4
"""The same of fractions, where the very values are asked for."""


@dataclass(frozen=True)
class Constructor:
    """Lines that prepare tensors, and the expression that uses them.

    Attributes:
        lines: One assignment each.
        expression: Makes the mask or score.
    """

    lines: tuple[str, ...]
    expression: str


def constructor(entry: Entry, part: Mask | Score, source: str = "") -> Constructor:
    """How a user writes this part.

    Args:
        entry: The entry.
        part: A mask or score of the entry.
        source: Python that makes the same part. If given, all values are the part's own, and tables too large to be
            written out are taken from there; without it random numbers stand in for what is learned.

    Raises:
        LookupError: A parameter of the entry that the part does not hold, or a table too large without a source.
    """
    lines, arguments = [], []
    for name, value in _arguments(entry, part):
        if isinstance(value, Tensor):
            lines.append(f"{name} = {_exact(name, value, source) if source else _tensor(value)}")
            value_text = name
        else:
            value_text = repr(value)
        arguments.append(f"{name}={value_text}")
    module = "masks" if entry.kind == "mask" else "scores"
    return Constructor(tuple(lines), f"{module}.{builder(entry).__name__}({', '.join(arguments)})")


def builder(entry: Entry) -> Callable[..., Any]:
    """The class or function that makes the entry.

    Raises:
        LookupError: It has none.
    """
    if entry.build is None:
        raise LookupError(f"{entry.name}: the entry cannot be built from parameters")
    return entry.build


def _arguments(entry: Entry, part: Mask | Score) -> Iterator[tuple[str, Any]]:
    """The parameters of what builds the entry, by name, without those that are as they would be anyway."""
    parameters = inspect.signature(builder(entry)).parameters
    values = {name: _found(entry, part, name) for name in parameters}
    for name, value in values.items():
        if parameters[name].default is inspect.Parameter.empty or not _follows(entry, values, name):
            yield name, value


def _follows(entry: Entry, values: dict[str, Any], name: str) -> bool:
    """Whether a parameter has its value without being given."""
    others = {other: value for other, value in values.items() if other != name}
    try:
        own = getattr(builder(entry)(**others), name)
    except (ValueError, TypeError):
        return False
    value = values[name]
    if isinstance(own, Tensor) and isinstance(value, Tensor):
        return torch.equal(own, value)
    return not isinstance(own, Tensor) and not isinstance(value, Tensor) and bool(own == value)


def _found(entry: Entry, part: Mask | Score, name: str) -> Any:
    """The value of a parameter: a field of the part, or of one of the parts of a composition."""
    if hasattr(part, name):
        return getattr(part, name)
    for inner in part.parts().values():
        if hasattr(inner, name):
            return getattr(inner, name)
    raise LookupError(f"{entry.name}: no part of {part!r} holds the parameter {name}")


def _exact(name: str, value: Tensor, source: str) -> str:
    """The very values: written out, or the field of that name of what the source makes."""
    if value.numel() > (FRACTIONS_WRITTEN_OUT if value.is_floating_point() else WRITTEN_OUT):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{source}.{name}  # {dtype} {list(value.shape)}"
    return _written_out(value)


def _tensor(value: Tensor) -> str:
    if value.is_floating_point():
        return _stand_in(value)
    if value.numel() > WRITTEN_OUT:
        raise LookupError(f"a table of {value.numel()} whole numbers is too large to be shown; choose a shorter case")
    return _written_out(value)


def _written_out(value: Tensor) -> str:
    dtype = "" if value.dtype in (torch.int64, torch.float32) else f", dtype={value.dtype}"
    numbers = value.int() if value.dtype == torch.bool else value
    leading = next((axis for axis, size in enumerate(value.shape) if size > 1), 0)
    axes = f"[{', '.join(['None'] * leading)}]" if leading else ""
    return f"torch.tensor({_rows(numbers[(0,) * leading])}{dtype}){axes}"


def _rows(numbers: Tensor) -> str:
    """A list of lists, the innermost ones below each other."""
    if numbers.ndim < 2:
        return str(_shortest(numbers) if numbers.is_floating_point() else numbers.tolist())
    rows = [_rows(row).replace("\n", "\n    ") for row in numbers]
    return "[\n    " + ",\n    ".join(rows) + ",\n]"


def _shortest(numbers: Tensor) -> Any:
    """The numbers in as few digits as tell them from others of their dtype."""
    if numbers.ndim == 0:
        return float(str(numbers.numpy()))
    return [_shortest(number) for number in numbers]


def _stand_in(value: Tensor) -> str:
    """Random numbers of the same shape and sign, for what is learned or computed elsewhere."""
    shape = ", ".join(map(str, value.shape))
    if bool((value >= 0).all()):
        return f"torch.rand({shape})"
    return f"-torch.rand({shape})" if bool((value <= 0).all()) else f"torch.randn({shape})"
