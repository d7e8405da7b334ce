"""How to give each parameter of each entry another value, and each batch parameters of its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import attn_mods as am
from attn_mods import masks, registry, scores
from attn_mods.mask import Mask
from attn_mods.score import Score

Make = Callable[[Any], Mask | Score]

LENGTH = 120
"""Positions that the tables of ``VALUES`` and ``PER_SAMPLE`` describe, unless ``LENGTHS`` says otherwise."""

HEADS = 4
NUMBERS = (3, 5, 8, 12, 20, 30, 60)
"""What the entries of ``VALUES`` are made for: all divide LENGTH."""

positions = torch.arange(LENGTH)
SLOPES = torch.linspace(0.1, 1.0, HEADS)
PAIRS = torch.linspace(-1.0, 1.0, LENGTH * LENGTH).reshape(1, 1, LENGTH, LENGTH)
NODES = 40


def _every(number: int, rows: int, columns: int) -> Tensor:
    """A table whose own diagonal and every ``number``-th one is True, bool [1, 1, rows, columns]."""
    return ((torch.arange(rows)[:, None] - torch.arange(columns)) % number == 0)[None, None]


def _tree(children: int, prefix: int | Tensor = LENGTH - NODES) -> masks.TreeVerification:
    return masks.TreeVerification.from_parents([(node - 1) // children for node in range(NODES)], prefix)


def _trees(batch: int) -> masks.TreeVerification:
    parents = torch.stack([(torch.arange(NODES) - 1).div(n + 1, rounding_mode="floor") for n in range(batch)])
    return masks.TreeVerification.from_parents(parents, torch.arange(batch) + LENGTH - NODES - batch)


VALUES: dict[str, Make] = {
    "sliding_window.window": masks.SlidingWindow,
    "document.cu_seqlens": lambda n: masks.Document.from_lengths([1] * n + [LENGTH - n]),
    "document.ids": lambda n: masks.Document.from_ids(positions // n),
    "document.padding": lambda n: masks.Document.from_ids(positions // 2, padding=n - 3),
    "document_causal.cu_seqlens": lambda n: masks.document_causal(torch.tensor([0, n, LENGTH])),
    "window_asymmetric.left": lambda n: masks.WindowAsymmetric(n, 7),
    "window_asymmetric.right": lambda n: masks.WindowAsymmetric(7, n),
    "window_symmetric.radius": masks.WindowSymmetric,
    "dilated_window.window": lambda n: masks.DilatedWindow(n, 2),
    "dilated_window.dilation": lambda n: masks.DilatedWindow(7, n),
    "sink_plus_window.sink_tokens": lambda n: masks.SinkPlusWindow(n, 7),
    "sink_plus_window.window": lambda n: masks.SinkPlusWindow(7, n),
    "global_plus_window.radius": lambda n: masks.GlobalPlusWindow(n, positions % 9 == 0),
    "global_plus_window.is_global": lambda n: masks.GlobalPlusWindow(7, positions % n == 0),
    "prefix_lm.prefix": masks.PrefixLm,
    "key_padding.lengths": masks.KeyPadding,
    "left_padding.start": masks.LeftPadding,
    "chunked_causal.chunk": lambda n: masks.ChunkedCausal(n, 7),
    "chunked_causal.origin": lambda n: masks.ChunkedCausal(7, n),
    "block_causal.block": masks.BlockCausal,
    "block_diagonal.block": masks.BlockDiagonal,
    "asr_chunk.chunk": lambda n: masks.AsrChunk(n, left_chunks=2),
    "asr_chunk.left_chunks": lambda n: masks.AsrChunk(7, left_chunks=n),
    "asr_chunk.left_frames": lambda n: masks.AsrChunk(7, left_frames=n),
    "asr_chunk.right_frames": lambda n: masks.AsrChunk(7, right_frames=n),
    "block_diffusion.block_size": lambda n: masks.BlockDiffusion(LENGTH // 2, n),
    "shared_prefix.cu_seqlens": lambda n: masks.SharedPrefix.from_lengths([n, 10, LENGTH - 10 - n], [-1, 0, 0]),
    "shared_prefix.prefix_document": lambda n: masks.SharedPrefix.from_lengths(
        [2] * 60, [-1] + [0 if document < n else -1 for document in range(1, 60)]
    ),
    "multimodal_spans.span": lambda n: masks.MultimodalSpans((positions < n).long() - 1),
    "multimodal_spans.window": lambda n: masks.MultimodalSpans((positions < 50).long() - 1, n),
    "cumsum_ar.mask_ar": lambda n: masks.CumsumAr(positions % n == 0),
    "cumsum_ar.valid": lambda n: masks.CumsumAr(positions % 7 == 0, valid=positions >= n),
    "sliding_tile.text": lambda n: masks.SlidingTile((6, 10), (2, 2), (1, 3), text=n),
    "tree_verification.ancestors": _tree,
    "tree_verification.prefix": lambda n: _tree(2, n),
    "selected_blocks.table": lambda n: masks.SelectedBlocks(_every(n, 60, 60), 2, 2),
    "selected_blocks.q_block": lambda n: masks.SelectedBlocks(_every(7, 40, 12), n, 10),
    "selected_blocks.kv_block": lambda n: masks.SelectedBlocks(_every(7, 12, LENGTH // n), 10, n),
    "area.area": lambda n: masks.Area(LENGTH, n),
    "alibi.slopes": lambda n: scores.Alibi(slopes=SLOPES / n),
    "relative_bias_table.table": lambda n: scores.RelativeBiasTable(SLOPES[:, None] * torch.arange(2 * n + 1)),
    "t5_bucket.table": lambda n: scores.T5Bucket(SLOPES[:, None] * torch.arange(2 * n)),
    "t5_bucket.max_distance": lambda n: scores.T5Bucket(SLOPES[:, None] * torch.arange(8), max_distance=n),
    "head_bias.bias": lambda n: scores.HeadBias(SLOPES / n),
    "pair_bias.bias": lambda n: scores.PairBias(SLOPES[:, None, None] * PAIRS / n),
    "log_n_scale.scaling": lambda n: scores.LogNScale(SLOPES / n),
    "log_n_scale.bias": lambda n: scores.LogNScale(SLOPES, SLOPES / n),
    "log_n_scale.minimum": lambda n: scores.LogNScale(0.4, minimum=n),
    "sandwich.max_length": lambda n: scores.Sandwich(HEADS, LENGTH + n),
    "sandwich.dimension": lambda n: scores.Sandwich(HEADS, LENGTH, 2 * n),
    "kerple.r1": lambda n: scores.Kerple(SLOPES / n, SLOPES),
    "kerple.r2": lambda n: scores.Kerple(SLOPES, SLOPES / n),
    "forgetting.log_gates": lambda n: scores.Forgetting(torch.full((1, HEADS, LENGTH), -1 / n)),
}
"""``entry.parameter``: the entry with one of NUMBERS, or a tensor made of it, as this parameter."""

COMPILED_IN: dict[str, Make] = {
    "softcap.cap": lambda n: scores.Softcap(float(n)),
    "log_n_scale.scaling": lambda n: scores.LogNScale(1 / n),
    "log_n_scale.bias": lambda n: scores.LogNScale(0.4, 1 / n),
    "neighborhood.canvas": lambda n: masks.Neighborhood((LENGTH // n, n), (1, 2)),
    "neighborhood.kernel": lambda n: masks.Neighborhood((2, 60), (1, n)),
    "neighborhood.dilation": lambda n: masks.Neighborhood((1, 120), (1, 2), dilation=(1, n)),
    "neighborhood.stride": lambda n: masks.Neighborhood((1, 120), (1, 60), stride=(1, n)),
    "sliding_tile.canvas": lambda n: masks.SlidingTile((LENGTH // n, n), (1, 1), (1, 3)),
    "sliding_tile.tile": lambda n: masks.SlidingTile((1, 120), (1, n), (1, 1)),
    "sliding_tile.kernel": lambda n: masks.SlidingTile((1, 120), (1, 2), (1, n)),
}
"""Parameters that are constants of the kernel: floats, of which torch can lower no symbol in a rule, and tuples."""

NO_VALUES = {
    "block_diffusion.length": "half the number of keys: the lengths of a call",
    "area.tokens": "the number of keys: the lengths of a call",
    "alibi.num_heads": "the number of query heads: the shape of q, of which every other one is another kernel",
    "sandwich.num_heads": "the number of query heads: the shape of q, of which every other one is another kernel",
    "sandwich.table": "computed from the other parameters",
}
"""Parameters that cannot change by themselves, and why."""

LENGTHS: dict[str, Callable[[Any], tuple[int, int]]] = {
    "sliding_tile.text": lambda n: (60 + n, 60 + n),
    "tree_verification.ancestors": lambda n: (NODES, LENGTH),
    "tree_verification.prefix": lambda n: (NODES, NODES + int(n)),
}
"""q_len and kv_len of the entries made for a number where they are not LENGTH."""

PER_SAMPLE: dict[str, Make] = {
    "document": lambda batch: masks.Document.from_ids(positions // (torch.arange(batch)[:, None] + 5)),
    "global_plus_window": lambda batch: masks.GlobalPlusWindow(2, positions < torch.arange(batch)[:, None]),
    "prefix_lm": lambda batch: masks.PrefixLm(torch.arange(batch) + 30),
    "key_padding": lambda batch: masks.KeyPadding(torch.arange(batch) + 30),
    "left_padding": lambda batch: masks.LeftPadding(torch.arange(batch) + 30),
    "chunked_causal": lambda batch: masks.ChunkedCausal(50, torch.arange(batch) + 30),
    "multimodal_spans": lambda batch: masks.MultimodalSpans((positions < torch.arange(batch)[:, None] + 30).long() - 1),
    "cumsum_ar": lambda batch: masks.CumsumAr(positions % 7 == 0, positions >= torch.arange(batch)[:, None]),
    "tree_verification": _trees,
    "selected_blocks": lambda batch: masks.SelectedBlocks(
        torch.cat([_every(sample + 2, 12, 12) for sample in range(batch)]), 10, 10
    ),
    "pair_bias": lambda batch: scores.PairBias(PAIRS * (torch.arange(batch) + 1.0)[:, None, None, None]),
    "forgetting": lambda batch: scores.Forgetting(-torch.rand(batch, 1, LENGTH)),
}
"""The entry with parameters of its own for each sample of a batch, where it has such a form."""


def parameters(name: str) -> Iterator[tuple[str, str]]:
    """Names and types, as text, of what an entry is made from."""
    build = registry.info(name).build
    for parameter in inspect.signature(build).parameters.values() if build is not None else ():
        yield parameter.name, str(parameter.annotation)


def takes(kind: str, annotation: str) -> bool:
    """Whether an annotation allows a type: "int", "float" or "Tensor"; a tuple is none of them."""
    allowed = annotation.replace("Number", "int | Tensor")
    return re.search(rf"\b{kind}\b", re.sub(r"tuple\[[^]]*\]", "tuple", allowed)) is not None


def changing_parameters() -> set[str]:
    """``entry.parameter`` of all parameters that may be an int or a tensor."""
    return {
        f"{name}.{parameter}"
        for name in am.names(kind="mask") + am.names(kind="score")
        for parameter, annotation in parameters(name)
        if takes("int", annotation) or takes("Tensor", annotation)
    }


def all_values() -> dict[str, Make]:
    """``VALUES``, and of an entry that has no line there its "tiny" case with another int."""
    listed = VALUES.keys() | NO_VALUES.keys()
    return VALUES | {
        f"{name}.{parameter}": partial(_with_int, name, parameter)
        for name in am.names(kind="mask") + am.names(kind="score")
        for parameter, annotation in parameters(name)
        if takes("int", annotation) and f"{name}.{parameter}" not in listed
    }


def _with_int(name: str, parameter: str, number: Any) -> Mask | Score:
    made: Mask | Score = replace(registry.info(name).cases["tiny"].make(LENGTH, LENGTH, "cpu"), **{parameter: number})
    return made


def constant_parameters() -> set[str]:
    """``entry.parameter`` of all parameters that may be a float or a tuple of ints."""
    return {
        f"{name}.{parameter}"
        for name in am.names(kind="mask") + am.names(kind="score")
        for parameter, annotation in parameters(name)
        if takes("float", annotation) or "tuple[int" in annotation
    }
