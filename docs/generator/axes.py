"""What can be moved in a recipe's explorer: its parameters, found by trying values, or else its cases."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mods.entry import Entry
from docs.generator.examples import Example, Input, first, input_of, make, matrix, own_lengths, shown_cases

LENGTHS = (16, 32, 64)
LEAST_QUERIES = 8
INTEGERS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
NUMBERS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0)
MOST_FRAMES = {"mask": 150, "score": 60}
MOST_HEADS = 4


@dataclass(frozen=True)
class Axis:
    """One control of an explorer.

    Attributes:
        name: A parameter, or "case", "sample" or "head".
        values: What it can be set to, in order.
        start: Position of the value that is shown first.
    """

    name: str
    values: tuple[Any, ...]
    start: int = 0


@dataclass(frozen=True)
class Explorer:
    """What the explorer of an entry can show.

    Attributes:
        entry: The entry.
        case: The case whose parameters are replaced; the first of the axis "case" if there is one.
        lengths: The (q_len, kv_len) pairs.
        axes: The controls.
        shown_on: The scores a score is shown on.
    """

    entry: Entry
    case: str
    lengths: tuple[tuple[int, int], ...]
    axes: tuple[Axis, ...]
    shown_on: Input

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination of values, the last axis fastest."""
        names = [axis.name for axis in self.axes]
        for values in itertools.product(*(axis.values for axis in self.axes)):
            yield dict(zip(names, values, strict=True))

    def example(self, setting: dict[str, Any], q_len: int, kv_len: int) -> Example | None:
        """The mask or score of a setting; None if the values do not go together."""
        fields = {name: value for name, value in setting.items() if name not in ("case", "sample", "head")}
        made = make(self.entry, setting.get("case", self.case), q_len, kv_len)
        return None if made is None else made.replaced(**fields)

    def matrix(self, setting: dict[str, Any], q_len: int, kv_len: int) -> Any:
        """The matrix of a setting; None if the values do not go together."""
        example = self.example(setting, q_len, kv_len)
        if example is None:
            return None
        return matrix(example, self.shown_on, setting.get("sample", 0), setting.get("head", 0))


def explorer(entry: Entry) -> Explorer:
    """The controls of an entry, bounded to a number of frames that a page can carry."""
    case = next((case for case in shown_cases(entry) if _lengths(entry, case)), "tiny")
    lengths = _lengths(entry, case)
    shown_on = input_of(first(entry, LENGTHS[0]))
    bare = Explorer(entry, case, lengths, (), shown_on)
    axes = [axis for field in _fields(entry, case, lengths[-1]) if (axis := _parameter(bare, *field)) is not None]
    if not axes:
        axes = _cases(bare)
    axes += _samples_and_heads(bare, axes)
    return dataclasses.replace(bare, axes=tuple(_bounded(axes, MOST_FRAMES[entry.kind])))


def _lengths(entry: Entry, case: str) -> tuple[tuple[int, int], ...]:
    """The usual lengths that the case can be made for, and for queries that are not the keys its own short ones."""
    pairs = [(length, length) for length in LENGTHS]
    own = [pair for pair in own_lengths(entry, LENGTHS[-1]) if pair[0] >= LEAST_QUERIES]
    possible = [(pair, example) for pair in {*pairs, *own} if (example := make(entry, case, *pair)) is not None]
    return tuple(sorted(pair for pair, example in possible if pair in pairs or example.part.frame == "cross"))


def _fields(entry: Entry, case: str, lengths: tuple[int, int]) -> Iterator[tuple[str, list[Any]]]:
    """The fields that hold one plain value, and the values to try."""
    base = make(entry, case, *lengths)
    if base is None or not dataclasses.is_dataclass(base.part):
        return
    seen = [made.part for name in entry.cases if (made := make(entry, name, *lengths)) is not None]
    for field in dataclasses.fields(base.part):
        in_cases = [getattr(part, field.name, None) for part in seen if type(part) is type(base.part)]
        value = getattr(base.part, field.name)
        if field.init and isinstance(value, bool | int | float | str | None):
            yield field.name, _tried(value, in_cases, str(field.type))


def _tried(value: Any, in_cases: Sequence[Any], kind: str) -> list[Any]:
    if isinstance(value, bool):
        return [False, True]
    if isinstance(value, str):
        return list(dict.fromkeys(each for each in in_cases if isinstance(each, str)))
    if isinstance(value, float):
        return sorted({*NUMBERS, value})
    if value is None and "int" not in kind and "Number" not in kind:
        return [None]
    plain = {value} if value is not None else set()
    unbounded = [None] if any(each is None for each in (value, *in_cases)) else []
    return [*sorted({*INTEGERS, *plain}), *unbounded]


def _parameter(bare: Explorer, name: str, tried: list[Any]) -> Axis | None:
    """The values of a field that make different pictures at the longest length; None if there are fewer than two."""
    lengths = bare.lengths[-1]
    base = make(bare.entry, bare.case, *lengths)
    own = None if base is None else getattr(base.part, name)
    values: dict[Any, Any] = {}
    for value in [own, *tried]:
        picture = bare.matrix({name: value}, *lengths)
        if picture is not None and not any(_same(picture, other) for other in values.values()):
            values[value] = picture
    order = [value for value in tried if value in values]
    return Axis(name, tuple(order), order.index(own)) if len(order) > 1 and own in order else None


def _cases(bare: Explorer) -> list[Axis]:
    """The cases that make different pictures at all lengths shown."""
    pictures: dict[str, Any] = {}
    for case in bare.entry.cases:
        picture = bare.matrix({"case": case}, *bare.lengths[-1])
        at_all = all(make(bare.entry, case, *pair) is not None for pair in bare.lengths)
        if at_all and picture is not None and not any(_same(picture, other) for other in pictures.values()):
            pictures[case] = picture
    return [Axis("case", tuple(pictures))] if len(pictures) > 1 else []


def _samples_and_heads(bare: Explorer, axes: list[Axis]) -> list[Axis]:
    """Axes for the samples and heads that the settings tell apart."""
    settings = Explorer(bare.entry, bare.case, bare.lengths, tuple(axes), bare.shown_on).settings()
    examples = [bare.example(setting, *bare.lengths[-1]) for setting in settings]
    sizes = [example.part.batch_and_heads() for example in examples if example is not None]
    most = [min(MOST_HEADS, max(size)) for size in zip(*sizes, strict=True)]
    named = zip(("sample", "head"), most, strict=True)
    return [Axis(name, tuple(range(size))) for name, size in named if size > 1]


def _bounded(axes: list[Axis], most: int) -> list[Axis]:
    """Axes thinned, the longest first, until their product is small enough."""
    axes = list(axes)
    while _product(axes) > most:
        longest = max(range(len(axes)), key=lambda number: len(axes[number].values))
        axes[longest] = _thinned(axes[longest])
    return axes


def _thinned(axis: Axis) -> Axis:
    """Every other value, the one shown first among them, and both ends; without the ends where that thins nothing."""
    every_other = {number for number in range(len(axis.values)) if (number - axis.start) % 2 == 0}
    kept = sorted(every_other | {0, len(axis.values) - 1})
    kept = kept if len(kept) < len(axis.values) else sorted(every_other)
    return Axis(axis.name, tuple(axis.values[number] for number in kept), kept.index(axis.start))


def _product(axes: list[Axis]) -> int:
    total = 1
    for axis in axes:
        total *= len(axis.values)
    return total


def _same(first: Any, second: Any) -> bool:
    return first.shape == second.shape and bool((first == second).all())
