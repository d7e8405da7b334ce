"""A learned bias per head and distance bucket: near distances one by one, far ones in logarithmic bins.

Rule: score -> score + table[h, bucket(j - i)].
From: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1.
Trap: T5 does not divide by sqrt(D); use ``Recipe(score=T5Bucket(...), scale=1.0)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import at_least_float32, only_if_many
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.realised import realised
from attn_mods.score import Score, ScoreMod
from attn_mods.symbols import fixed

FARTHEST = 2**20
"""Largest max_distance: a row per head has the bias of every distance up to it."""


@dataclass(frozen=True, eq=False)
class T5Bucket(Score):
    """score -> score + table[h, bucket(j - i)].

    Of the n buckets of one direction, n // 2 hold one distance each and the others grow by a constant factor up to
    ``max_distance``; the last one holds all that is farther.

    Args:
        table: Bias by head and bucket, float [H, buckets] or [1, buckets]; may be learned. It is the transpose of
            ``relative_attention_bias.weight`` in Transformers. -inf hides the keys of that bucket.
        bidirectional: True (encoder): the first half of the buckets is for keys at or before the query, the second
            half for keys after it. False (decoder): all are for keys before it, and keys after it share bucket 0.
        max_distance: Distance from which on all keys share the last bucket, tokens; more than n // 2. Every head takes
            memory for the bias of each distance up to it.

    Raises:
        ValueError: Fewer than two buckets a direction, NaN or +inf in the table, max_distance too small or more than
            2^20.
        TypeError: table is not a float tensor, max_distance not an int, bidirectional not a bool.

    References:
        Raffel et al. 2019, arXiv 1910.10683, section 2.1; buckets as in Mesh TensorFlow's
        transformer_layers.py and Transformers' modeling_t5.py, their float32 formula in exact integers.
    """

    additive = True

    table: Tensor
    bidirectional: bool = True
    max_distance: int = 128

    entry = Entry(
        title="T5 relative position buckets",
        summary="A learned bias per head and distance bucket: near distances one by one, far ones in logarithmic bins.",
        papers=(Paper("Exploring the Limits of Transfer Learning (T5)", "1910.10683", where="section 2.1"),),
        models=(
            Model("T5", field="relative_attention_num_buckets"),
            Model("UMT5", field="relative_attention_num_buckets"),
        ),
        tags=frozenset({"position", "additive", "learned"}),
        cases={
            "tiny": Case(lambda q_len, kv_len, device: T5Bucket(_example(2, 8, device), max_distance=6)),
            "causal": Case(lambda q_len, kv_len, device: T5Bucket(_example(3, 32, device), bidirectional=False)),
            "bidirectional": Case(lambda q_len, kv_len, device: T5Bucket(_example(1, 32, device))),
            "odd": Case(lambda q_len, kv_len, device: T5Bucket(_example(2, 7, device), max_distance=17)),
            "bench": Case(lambda q_len, kv_len, device: T5Bucket(_example(16, 32, device))),
        },
        scale=1.0,
        traps=(
            "The scale is 1: with the usual 1 / sqrt(D) the trained weights mean another model.",
            "In T5 the first layer's table serves all layers of a stack; cross attention has none.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass a float tensor [H, buckets], for example relative_attention_bias.weight.T with 32 buckets"
        checks.learnable(self.name, "table", self.table, ndim=(2,), remedy=remedy, hides=True)
        if not isinstance(self.bidirectional, bool):
            remedy = "pass True for an encoder, False for a decoder"
            checks.fail(self.name, "bidirectional must be a bool", repr(self.bidirectional), remedy, TypeError)
        if self._side() < 2:
            checks.fail(self.name, "each direction needs at least 2 buckets", self._side(), remedy)
        farthest = "pass the distance where the last bucket begins, 128 in T5"
        checks.static_integer_field(self, "max_distance", self._side() // 2 + 1, farthest)
        if self.max_distance > FARTHEST:
            checks.fail(self.name, f"max_distance must be <= {FARTHEST}", self.max_distance, farthest)

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """One read per score, from a row per head that has the bias of every distance up to the farthest."""
        farthest, heads = fixed(self.max_distance), self.batch_and_heads()[1]
        # In float32 before the rows are made, so that the gradients of a bucket are added up in it.
        bias = realised(at_least_float32(self.table)[:, self._buckets()])

        def t5_bucket(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            before = (q_idx - kv_idx).clamp(0, farthest)
            return score + bias[only_if_many(h, heads), before]

        def t5_bucket_bidirectional(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            column = (kv_idx - q_idx + farthest).clamp(0, 2 * farthest)
            return score + bias[only_if_many(h, heads), column]

        return t5_bucket_bidirectional if self.bidirectional else t5_bucket

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Buckets by the formula with logarithms, in float64."""
        towards = j[None, :] - i[:, None]
        side = self._side()
        exact = side // 2
        distance = towards.abs() if self.bidirectional else (-towards).clamp(min=0)
        grown = torch.log(distance.clamp(min=1) / exact).double() / math.log(self.max_distance / exact)
        # A distance that lies on a boundary must not fall below it by rounding.
        far = (exact + torch.floor(grown * (side - exact) + 1e-6).long()).clamp(max=side - 1)
        bucket = torch.where(distance < exact, distance, far)
        if self.bidirectional:
            bucket = bucket + side * (towards > 0)
        return scores + self.table.to(scores.dtype)[:, bucket]

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per row of the table."""
        return 1, self.table.shape[0]

    def _buckets(self) -> Tensor:
        """The bucket of j - i from -max_distance to max_distance; of one direction, of i - j from 0."""
        side = fixed(self._side())
        before = torch.tensor(buckets_of_distances(side, fixed(self.max_distance)), device=self.table.device)
        return torch.cat([before.flip(0), before[1:] + side]) if self.bidirectional else before

    def _side(self) -> int:
        return self.table.shape[1] // 2 if self.bidirectional else self.table.shape[1]


def buckets_of_distances(side: int, max_distance: int) -> list[int]:
    """The bucket of distance 0, 1, ..., max_distance among the ``side`` buckets of one direction, in exact integers."""
    exact, wide = side // 2, side - side // 2
    buckets, bucket = [], 0
    for distance in range(max_distance + 1):
        # bucket + 1 begins where (distance / exact)^wide reaches (max_distance / exact)^(steps).
        while bucket + 1 < side and _begins(bucket + 1, distance, exact, wide, max_distance):
            bucket += 1
        buckets.append(bucket)
    return buckets


def _begins(bucket: int, distance: int, exact: int, wide: int, max_distance: int) -> bool:
    if bucket <= exact:
        return distance >= bucket
    steps = bucket - exact
    return bool(distance**wide * exact**steps >= max_distance**steps * exact**wide)


def _example(heads: int, buckets: int, device: str) -> Tensor:
    return torch.randn(heads, buckets, generator=torch.Generator().manual_seed(0)).to(device)
