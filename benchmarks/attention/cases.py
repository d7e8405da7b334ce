"""What is measured: an entry's case on one shape, and which of them a suite has."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks
from attn_mods.backends import Shapes
from attn_mods.entry import Case, Entry
from attn_mods.mask import Mask
from attn_mods.score import Score
from attn_mods.work import count_work

PASSES = ("forward", "backward", "forward_backward")
BYTES_OF_A_PAIR = 16
TIMES_THE_INPUTS = 16
"""Copies for gradients, for CUDA graphs of all ways, and for the truth in float64."""

BYTES_OF_A_PROCESS = 2**32
"""What libraries hold on a card, and the matrices of the truth, which is found for some queries at a time."""

ENOUGH_TOKENS = 1024
USUAL_CASE = "bench"
"""The parameters an entry is measured with, where no others are named."""


@dataclass(frozen=True)
class Shape:
    """Sizes of q [B, Hq, q_len, head_dim] and of k and v [B, Hkv, kv_len, head_dim], and their dtype."""

    B: int
    Hq: int
    Hkv: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str

    @property
    def shapes(self) -> Shapes:
        """The sizes as backends are asked for them."""
        return Shapes(self.B, self.Hq, self.Hkv, self.q_len, self.kv_len, self.head_dim, self.head_dim)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True)
class Group:
    """One recipe on one shape: all ways to compute it are measured in turns, and against each other alone."""

    entry: str
    case: str
    shape: Shape

    @property
    def name(self) -> str:
        """What a progress bar and an error call it."""
        lengths = f"{self.shape.q_len:,}"
        if self.shape.q_len != self.shape.kv_len:
            lengths += f" x {self.shape.kv_len:,}"
        return f"{self.entry} {self.case} {lengths} {self.shape.dtype}"

    @property
    def has_score(self) -> bool:
        """Whether the entry is a score."""
        return am.info(self.entry).kind == "score"

    def recipe(self, device: str) -> Recipe:
        """The recipe: a mask by itself, a score under the causal mask, as most of them are in use."""
        part = am.info(self.entry).cases[self.case].make(self.shape.q_len, self.shape.kv_len, device)
        return Recipe(mask=masks.Causal(), score=part) if isinstance(part, Score) else Recipe(mask=part)

    def q_offset(self, recipe: Recipe) -> int | None:
        """Where the first query is: the queries are the last positions of the keys."""
        unequal = self.shape.q_len != self.shape.kv_len
        return self.shape.kv_len - self.shape.q_len if unequal and recipe.frame == "self" else None

    def inputs(self, device: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Random q, k, v and the gradient of the output."""
        shape = self.shape
        generator = torch.Generator(device).manual_seed(seed)
        sizes = ((shape.Hq, shape.q_len), (shape.Hkv, shape.kv_len), (shape.Hkv, shape.kv_len), (shape.Hq, shape.q_len))
        q, k, v, gradient = (
            torch.randn(shape.B, *size, shape.head_dim, generator=generator, device=device).to(shape.torch_dtype)
            for size in sizes
        )
        return q, k, v, gradient

    def shortened(self, length: int) -> Group:
        """The same on lengths of at most this many, for a check; itself where its parameters fix the lengths."""
        fixed = am.info(self.entry).cases[self.case].lengths is not None
        if fixed or max(self.shape.q_len, self.shape.kv_len) <= length:
            return self
        shape = replace(self.shape, q_len=min(self.shape.q_len, length), kv_len=min(self.shape.kv_len, length))
        return replace(self, shape=shape)

    def to_ask_about(self) -> Group:
        """The same, but a score on few tokens: it may hold a number for every pair, and answers as well with fewer."""
        return self.shortened(ENOUGH_TOKENS) if self.has_score else self

    def pairs_kept(self) -> int:
        """Visible pairs of all samples and query heads."""
        shape = self.shape
        # A score's own parameters, which may be as large as the matrix of scores, are not needed.
        recipe = Recipe(mask=masks.Causal()) if self.has_score else self.recipe("cpu")
        if recipe.mask is None:
            return shape.B * shape.Hq * shape.q_len * shape.kv_len
        batch, heads = recipe.mask.batch_and_heads()
        kept = count_work(recipe.mask, shape.q_len, shape.kv_len, q_offset=self.q_offset(recipe)).pairs_kept
        return kept * (shape.B // batch) * (shape.Hq // heads)

    def bytes_needed(self, holds_matrix: bool) -> int:
        """About how much memory its ways take at most: of two kinds, with the matrix of scores and without.

        Args:
            holds_matrix: Whether one of them makes that matrix: scores, weights and their gradients in float32.
        """
        shape = self.shape
        rows = shape.B * (2 * shape.Hq * shape.q_len + 2 * shape.Hkv * shape.kv_len)
        inputs = rows * shape.head_dim * shape.torch_dtype.itemsize
        matrix = shape.B * shape.Hq * shape.q_len * shape.kv_len * BYTES_OF_A_PAIR
        return BYTES_OF_A_PROCESS + inputs * TIMES_THE_INPUTS + matrix * holds_matrix

    def described(self) -> dict[str, Any]:
        """The part of its records that all ways share."""
        return {
            "recipe": self.entry,
            "recipe_digest": recipe_digest(self.entry),
            "case": self.case,
            "shape": asdict(self.shape),
        }


@functools.cache
def recipe_digest(name: str) -> str:
    """What tells the code of an entry from another version of it: the SHA-256 of its file, shortened."""
    entry = am.info(name)
    makes = entry.build or next(case.make for case in entry.cases.values())
    return hashlib.sha256(Path(inspect.getfile(makes)).read_bytes()).hexdigest()[:16]


@functools.cache
def recipe_name(group: Group) -> str:
    """The name of a group's recipe, by which tables know it; to have it the recipe is made, which may take a second."""
    return group.to_ask_about().recipe("cpu").name


def is_of_this_file(row: dict[str, Any]) -> bool:
    """Whether a record of attention is of the recipe's file at hand; one without a digest does not say otherwise."""
    name = row["recipe"]
    return name in am.names() and row.get("recipe_digest") in (None, recipe_digest(name))


@dataclass(frozen=True)
class Suite:
    """Which cases on which shapes.

    Attributes:
        lengths: Numbers of tokens.
        cases: The cases of an entry; None is all of them.
        heads: Query heads, where the entry leaves their number open.
        head_dims: Sizes of a head.
        dtypes: Of q, k and v.
        shapes: In place of all combinations of the others but the cases.
    """

    lengths: tuple[int, ...]
    cases: tuple[str, ...] | None
    heads: int
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...] = ()


TOKENS, WIDTH = 16_384, 2048
"""Tokens of a batch and width of a layer that comparisons of kernels hold constant."""


def _by_length(length: int, head_dim: int, dtype: str) -> Shape:
    heads = WIDTH // head_dim
    return Shape(max(1, TOKENS // length), heads, heads, length, length, head_dim, dtype)


COMPARED = (
    *(_by_length(2**power, 128, "bfloat16") for power in range(9, 18)),
    *(_by_length(2**power, 64, "bfloat16") for power in range(9, 18, 2)),
    *(_by_length(length, 32, "bfloat16") for length in (1024, 8192)),
    *(_by_length(length, 64, "float16") for length in (1024, 8192)),
    *(Shape(1, 4, 4, length, length, 128, "bfloat16") for length in (1024, 8192)),
    Shape(32, 32, 32, 1024, 1024, 32, "float16"),  # PyTorch's tutorial on scaled_dot_product_attention
    Shape(128, 8, 8, 400, 400, 32, "float16"),  # area attention as in YOLOv12: 32 images of 40 x 40 in 4 areas
    Shape(1, 32, 8, 4096, 4096, 128, "bfloat16"),  # a prompt of Mixtral 8x7B
    Shape(32, 32, 8, 1, 4096, 128, "bfloat16"),  # its decoding
)
"""Shapes on which kernels are compared that take no other mask than a causal one."""

SUITES = {
    "cpu": {
        "quick": Suite((1024,), (USUAL_CASE,), 4, (64,), ("float32",)),
        "standard": Suite((1024, 4096), (USUAL_CASE,), 8, (64,), ("float32",)),
        "full": Suite((512, 1024, 2048, 4096), None, 8, (32, 64, 128), ("float32",)),
    },
    "cuda": {
        "quick": Suite((4096,), (USUAL_CASE,), 16, (128,), ("bfloat16",)),
        "standard": Suite((4096, 16_384), (USUAL_CASE,), 16, (128,), ("bfloat16",)),
        "full": Suite((512, 2048, 8192, 16_384, 32_768, 131_072), None, 16, (32, 64, 128), ("bfloat16", "float16")),
        "compared": Suite((), (USUAL_CASE,), 0, (), (), COMPARED),
    },
}
"""By kind of device and name."""


def groups(names: Iterable[str], suite: Suite) -> list[Group]:
    """All that a suite measures of these entries, what is short first."""
    made = [group for name in names for group in _groups_of(am.info(name), suite)]
    return sorted(made, key=lambda group: group.shape.q_len * group.shape.kv_len)


def _groups_of(entry: Entry, suite: Suite) -> list[Group]:
    wanted = [name for name in suite.cases or entry.cases if name in entry.cases]
    if suite.shapes:
        return [Group(entry.name, name, shape) for name in wanted for shape in suite.shapes]
    made = []
    for name, head_dim, dtype in itertools.product(wanted, suite.head_dims, suite.dtypes):
        case = entry.cases[name]
        # Parameters that fix the lengths are measured on the longest they are made for.
        lengths = [(n, n) for n in suite.lengths] if case.lengths is None else [max(case.lengths)]
        for q_len, kv_len in lengths:
            batch, heads = Recipe.of(_short(case, q_len, kv_len)).batch_and_heads()
            heads = suite.heads if heads == 1 else heads
            made.append(Group(entry.name, name, Shape(batch, heads, heads, q_len, kv_len, head_dim, dtype)))
    return made


def _short(case: Case, q_len: int, kv_len: int) -> Mask | Score:
    """The case on few tokens if any number will do: whoever asks for samples and heads need not make a large table."""
    if case.lengths is None:
        q_len, kv_len = (min(length, ENOUGH_TOKENS) for length in (q_len, kv_len))
    made: Mask | Score = case.make(q_len, kv_len, "cpu")
    return made
