"""An entry with parameters at given lengths, and its matrix: the only way pages come to see a mask or score."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from attn_mods import registry
from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.score import Score

Input = Literal["zero", "one", "ramp"]
"""The scores that a score is shown on: 0 or 1 at every pair, or from -100 at the first key to 100 at the last."""

RAMP = 100.0


@dataclass(frozen=True)
class Example:
    """A mask or score with parameters, fit for these lengths.

    Attributes:
        part: The mask or score.
        q_len: Number of queries.
        kv_len: Number of keys.
    """

    part: Mask | Score
    q_len: int
    kv_len: int

    def replaced(self, **values: object) -> Example | None:
        """The same with other fields; None if they do not go together."""
        if not values:
            return self
        try:
            part: Mask | Score = dataclasses.replace(cast(Any, self.part), **values)
            return checked(part, self.q_len, self.kv_len)
        except (ValueError, TypeError):
            return None


def catalogue() -> list[Entry]:
    """Every mask and score, in the order of the catalogue."""
    return [registry.info(name) for kind in ("mask", "score") for name in registry.names(kind=kind)]


def checked(part: Mask | Score, q_len: int, kv_len: int) -> Example:
    """An example of a part.

    Raises:
        ValueError: The parameters do not describe these lengths.
    """
    part.check_lengths(q_len, kv_len)
    part.batch_and_heads()
    return Example(part, q_len, kv_len)


def make(entry: Entry, case: str, q_len: int, kv_len: int) -> Example | None:
    """The example of a case; None if the case has none of these lengths."""
    try:
        return checked(entry.cases[case].make(q_len, kv_len, "cpu"), q_len, kv_len)
    except (ValueError, TypeError):
        return None


def first(entry: Entry, length: int) -> Example:
    """The example of an entry within a length: of a mask the case "tiny" if it can be that long, else another case.

    Where queries are not the keys, the longest of the lengths that "tiny" is defined for. Of a score the case "bench",
    whose parameters are those of models, not of pictures.

    Raises:
        LookupError: No case of the entry is that short.
    """
    for q_len, kv_len in sorted(own_lengths(entry, length), reverse=True):
        example = make(entry, "tiny", q_len, kv_len)
        if example is not None and example.part.frame == "cross":
            return example
    for case in shown_cases(entry):
        example = make(entry, case, length, length)
        if example is not None:
            return example
    raise LookupError(f"{entry.name}: no case can be shown at {length} tokens; give it one for any length")


def is_causal(entry: Entry) -> bool:
    """Whether a score is meant for decoders, and so shown under a causal mask."""
    return entry.kind == "score" and "decoder" in entry.tags


def shown_cases(entry: Entry) -> list[str]:
    """The cases in the order in which one is looked for to be shown."""
    return ["bench", *(case for case in entry.cases if case != "bench")] if entry.kind == "score" else list(entry.cases)


def input_of(example: Example) -> Input:
    """What shows most of a score: one value at every pair, or a ramp where the result is the same at every pair."""
    if isinstance(example.part, Mask):
        return "zero"
    constant: Input = "zero" if example.part.additive else "one"
    values = matrix(example, constant)
    return constant if values is not None and bool((values != values[0, 0]).any()) else "ramp"


def matrix(example: Example, shown_on: Input = "zero", sample: int = 0, head: int = 0) -> Tensor | None:
    """The ``dense`` of one sample and head, [q_len, kv_len]; None if there is no such sample or head.

    Args:
        example: A mask gives bool, a score what it makes of the scores it is shown on, float64.
        shown_on: Those scores.
        sample: Index of the batch.
        head: Index of the query head.
    """
    batch, heads = example.part.batch_and_heads()
    if sample >= batch or head >= heads:
        return None
    if isinstance(example.part, Mask):
        dense = example.part.dense(example.q_len, example.kv_len)
        dense = dense.reshape((1,) * (4 - dense.ndim) + dense.shape)
    else:
        dense = _score_dense(example.part, example.q_len, example.kv_len, shown_on)
    return dense[min(sample, dense.shape[0] - 1), min(head, dense.shape[1] - 1)]


def _score_dense(score: Score, q_len: int, kv_len: int, shown_on: Input) -> Tensor:
    ramp = torch.linspace(-RAMP, RAMP, kv_len, dtype=torch.float64)
    row = ramp if shown_on == "ramp" else torch.full_like(ramp, 0.0 if shown_on == "zero" else 1.0)
    scores = row.expand(*score.batch_and_heads(), q_len, kv_len).contiguous()
    with torch.no_grad():
        return score.dense(scores, torch.arange(q_len), torch.arange(kv_len))


def own_lengths(entry: Entry, longest: int) -> Iterator[tuple[int, int]]:
    """The lengths that the case "tiny" is defined for, up to the longest."""
    for q_len, kv_len in sorted(entry.cases["tiny"].lengths or ()):
        if kv_len <= longest:
            yield q_len, kv_len
