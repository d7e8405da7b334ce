"""The masks that are measured: each as an entry of the catalogue and as a user's closure, over fresh parameter values.

A seed gives the values, and the same ones on every device. A closure is what a user would write: numbers and tables,
none of this package's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from attn_mods import Mask, masks
from attn_mods.mask import MaskMod
from attn_mods.masks._canvas import near_square

WINDOW = 1024
RADIUS = 6
"""Tokens on each side of a neighborhood's centre: a kernel of 13."""

SAMPLES = 4
PHASE_BLOCK = 64
GLOBAL_TOKENS = 16

Parameters = dict[str, Any]


@dataclass(frozen=True)
class MeasuredMask:
    """One mask.

    Attributes:
        described: What a record says of the parameters.
        parameters: Fresh values from (length, seed, device): ints, which differ from seed to seed, tensors on the
            device, and tuples of what the length alone decides.
        closure: The rule as a user writes it, over all parameters.
        entry: The same from the catalogue; None if no entry has the rule.
        batch: Batch size of the lists.
    """

    described: dict[str, Any]
    parameters: Callable[[int, int, str], Parameters]
    closure: Callable[..., MaskMod]
    entry: Callable[..., Mask] | None
    batch: int = 1

    def fresh_closure(self, length: int, seed: int, device: str) -> MaskMod:
        """The rule over the values of a seed."""
        return self.closure(**self.parameters(length, seed, device))

    def closure_of_tensors(self, length: int, seed: int, device: str) -> MaskMod:
        """The same with every int as a 0-d tensor, so that a new value is no other program to torch.compile."""
        values = self.parameters(length, seed, device)
        tensors = {n: torch.tensor(v, device=device) if isinstance(v, int) else v for n, v in values.items()}
        return self.closure(**tensors)


def alternating(centre: int, seed: int) -> int:
    """Centre, centre + 1, centre - 1, centre + 2, ...: another value for every seed."""
    step = (seed + 1) // 2
    return centre + (step if seed % 2 else -step)


def boundaries(length: int, documents: int, seed: int) -> numpy.ndarray[Any, Any]:
    """Boundaries of that many documents, none empty while the length suffices, at random positions."""
    documents = min(documents, length)
    cuts = numpy.random.default_rng(seed).choice(length - 1, documents - 1, replace=False, shuffle=False) + 1
    return numpy.concatenate([[0], numpy.sort(cuts), [length]])


def packed(documents: int) -> Callable[[int, int, str], Parameters]:
    """Parameters of documents packed into one sequence: boundaries for the entry, a table of ids for the closure."""

    def parameters(length: int, seed: int, device: str) -> Parameters:
        cuts = boundaries(length, documents, seed)
        ids = numpy.repeat(numpy.arange(len(cuts) - 1), numpy.diff(cuts))
        return {
            "cu_seqlens": torch.from_numpy(cuts).to(device, torch.int32),
            "document": torch.from_numpy(ids).to(device, torch.int32),
        }

    return parameters


def windowed_documents(length: int, seed: int, device: str) -> Parameters:
    """A window, and documents."""
    return packed(64)(length, seed, device) | {"window": alternating(WINDOW, seed)}


def prefixes(length: int, seed: int, device: str) -> Parameters:
    """One prefix for each sample."""
    drawn = numpy.random.default_rng(seed).integers(0, length // 2 + 1, SAMPLES)
    return {"prefix": torch.from_numpy(drawn).to(device)}


def canvas(length: int, seed: int, device: str) -> Parameters:
    """The canvas of exactly that many tokens, and how far a token sees on either axis."""
    rows, columns = divmod(seed, 3)
    return {"canvas": near_square(length), "row_radius": RADIUS - rows % 3, "column_radius": RADIUS - columns}


def phases(length: int, seed: int, device: str) -> Parameters:
    """The distance of the blocks that see each other, and which tokens everyone sees."""
    is_global = numpy.zeros(length, dtype=bool)
    is_global[numpy.random.default_rng(seed).integers(0, length, GLOBAL_TOKENS)] = True
    return {"dilation": 8 + seed % 5, "is_global": torch.from_numpy(is_global).to(device)}


def causal_closure() -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return q_idx >= kv_idx

    return rule


def sliding_window_closure(window: int) -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    return rule


def document_causal_closure(cu_seqlens: Tensor, document: Tensor) -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    return rule


def windowed_documents_closure(window: int, cu_seqlens: Tensor, document: Tensor) -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window) & (document[q_idx] == document[kv_idx])

    return rule


def prefix_lm_closure(prefix: Tensor) -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx < prefix[b]) | (kv_idx <= q_idx)

    return rule


def neighborhood_closure(canvas: tuple[int, int], row_radius: int, column_radius: int) -> MaskMod:
    height, width = canvas

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        row = (q_idx // width).clamp(row_radius, height - 1 - row_radius)
        column = (q_idx % width).clamp(column_radius, width - 1 - column_radius)
        same_rows = (row - kv_idx // width).abs() <= row_radius
        return same_rows & ((column - kv_idx % width).abs() <= column_radius)

    return rule


def phases_closure(dilation: int, is_global: Tensor) -> MaskMod:
    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        in_phase = (q_idx // PHASE_BLOCK - kv_idx // PHASE_BLOCK) % dilation == 0
        return (q_idx >= kv_idx) & (in_phase | is_global[kv_idx])

    return rule


def neighborhood_entry(canvas: tuple[int, int], row_radius: int, column_radius: int) -> Mask:
    return masks.Neighborhood(canvas, (2 * row_radius + 1, 2 * column_radius + 1))


MASKS: dict[str, MeasuredMask] = {
    "causal": MeasuredMask({}, lambda length, seed, device: {}, causal_closure, masks.Causal),
    "sliding_window": MeasuredMask(
        {"window": WINDOW},
        lambda length, seed, device: {"window": alternating(WINDOW, seed)},
        sliding_window_closure,
        masks.SlidingWindow,
    ),
    "document_causal": MeasuredMask(
        {"documents": 64},
        packed(64),
        document_causal_closure,
        lambda cu_seqlens, document: masks.Document(cu_seqlens) & masks.Causal(),
    ),
    "many_documents_causal": MeasuredMask(
        {"documents": 5000},
        packed(5000),
        document_causal_closure,
        lambda cu_seqlens, document: masks.Document(cu_seqlens) & masks.Causal(),
    ),
    "windowed_documents": MeasuredMask(
        {"window": WINDOW, "documents": 64},
        windowed_documents,
        windowed_documents_closure,
        lambda window, cu_seqlens, document: masks.SlidingWindow(window) & masks.Document(cu_seqlens),
    ),
    "prefix_lm": MeasuredMask(
        {"prefix": "one a sample, up to half the length"}, prefixes, prefix_lm_closure, masks.PrefixLm, batch=SAMPLES
    ),
    "neighborhood": MeasuredMask(
        {"canvas": "the nearest to a square", "kernel": [2 * RADIUS + 1] * 2},
        canvas,
        neighborhood_closure,
        neighborhood_entry,
    ),
    "dilated_blocks_and_global_tokens": MeasuredMask(
        {"block": PHASE_BLOCK, "dilation": 8, "global_tokens": GLOBAL_TOKENS}, phases, phases_closure, None
    ),
}
PRINCIPAL = ("causal", "sliding_window", "document_causal")
"""The masks that the bars are about; they are measured first."""
