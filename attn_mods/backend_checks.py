"""Checks of what a backend claims: its output, lse and gradients against float64.

Allowed is the two-errors rule: twice the error that dense attention makes in the same dtype. The dense attention is
written here and shares no code with any backend, so that no backend is held against itself; and however wrong it may
be, no more is allowed than a fixed multiple of the dtype's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.dispatch import attention
from attn_mods.entry_checks import Row
from attn_mods.mask import Mask
from attn_mods.oracle import dense_scores, reference
from attn_mods.recipe import Recipe
from attn_mods.score import Score

HEADS, KEY_HEADS, BATCH, HEAD_DIM = 4, 2, 2, 32

GRADIENT_SLACK = 4
"""Gradients are longer sums, with more cancellation: they may be off by this many times what an output may."""

ZERO = 1e-10
"""A gradient of at most this share of the largest one is zero in float64 but for rounding."""

Attention = Callable[[Tensor, Tensor, Tensor, Recipe], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """One call to check: a recipe and its inputs."""

    recipe: Recipe
    q: Tensor
    k: Tensor
    v: Tensor
    q_offset: int | None = None

    @classmethod
    def of(
        cls, part: Recipe | Mask | Score, q_len: int, kv_len: int, dtype: torch.dtype, device: str = "cpu"
    ) -> Problem:
        """Random q, k, v with as many batches and heads as the parameters ask for, grouped query heads otherwise."""
        recipe = Recipe.of(part)
        batch, heads = recipe.batch_and_heads()
        batch, heads = BATCH if batch == 1 else batch, HEADS if heads == 1 else heads
        key_heads = KEY_HEADS if heads % KEY_HEADS == 0 else heads
        generator = torch.Generator().manual_seed(0)
        shapes = ((batch, heads, q_len), (batch, key_heads, kv_len), (batch, key_heads, kv_len))
        q, k, v = (torch.randn(*shape, HEAD_DIM, generator=generator).to(device, dtype) for shape in shapes)
        return cls(recipe, q, k, v, None if q_len == kv_len else 0)


def check_output(where: str, backend: str, problem: Problem) -> Row:
    """The backend's output against float64."""
    q, k, v, recipe, q_offset = problem.q, problem.k, problem.v, problem.recipe, problem.q_offset
    with torch.no_grad():
        expected = reference(q, k, v, recipe, q_offset=q_offset)
        plain, _ = plain_attention(problem)
        out = attention(q, k, v, recipe, q_offset=q_offset, backend=backend)
    if (out.shape, out.dtype) != (expected.shape, q.dtype):
        detail = f"{out.dtype} {tuple(out.shape)}, must be {q.dtype} {tuple(expected.shape)}"
        return Row(where, f"{backend} = float64", "wrong", detail)
    return _verdict(where, f"{backend} = float64", {"out": (out, plain, expected)}, q.dtype)


def check_lse(where: str, backend: str, problem: Problem) -> Row:
    """The backend's lse against float64: -inf in the same rows, and close in the others."""
    q, k, v, recipe, q_offset = problem.q, problem.k, problem.v, problem.recipe, problem.q_offset
    with torch.no_grad():
        _, expected = reference(q, k, v, recipe, q_offset=q_offset, return_lse=True)
        _, plain = plain_attention(problem)
        _, lse = attention(q, k, v, recipe, q_offset=q_offset, return_lse=True, backend=backend)
    check, wanted = f"{backend} lse", torch.promote_types(q.dtype, torch.float32)
    if (lse.shape, lse.dtype) != (expected.shape, wanted):
        return Row(where, check, "wrong", f"{lse.dtype} {tuple(lse.shape)}, must be {wanted} {tuple(expected.shape)}")
    empty = expected == -math.inf
    different = ((lse == -math.inf) != empty).nonzero().tolist()
    if different:
        row = tuple(different[0])
        detail = f"{float(lse[row])} at (b, h, i) = {row}, where float64 gives {float(expected[row])}"
        return Row(where, check, "wrong", detail)
    finite = {"lse": (lse[~empty], plain[~empty], expected[~empty])}
    return _verdict(where, check, finite, wanted)


def check_gradients(where: str, backend: str, problem: Problem, parameters: bool) -> Row:
    """The backend's gradients against autograd of the float64 reference.

    Args:
        where: The case, for the row.
        backend: Name of the backend.
        problem: Recipe and inputs.
        parameters: Whether to check the gradients of the recipe's learnable tensors too.
    """
    q_offset = problem.q_offset

    def of_backend(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        return attention(q, k, v, recipe, q_offset=q_offset, backend=backend)

    def of_reference(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        return reference(q, k, v, recipe, q_offset=q_offset)

    def of_plain(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        return plain_attention(Problem(recipe, q, k, v, q_offset))[0]

    expected = gradients(of_reference, problem, parameters, torch.float64)
    plain = gradients(of_plain, problem, parameters)
    got = gradients(of_backend, problem, parameters)
    triples = {name: (got[name], plain[name], expected[name]) for name in expected}
    return _verdict(where, f"{backend} gradients", triples, problem.q.dtype, GRADIENT_SLACK)


def gradients(
    attend: Attention, problem: Problem, parameters: bool, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Gradients by name of q, k, v and learnable tensors for a fixed random gradient of the output.

    Args:
        attend: Computes the output.
        problem: Recipe and inputs.
        parameters: Whether to take those of the recipe's learnable tensors too.
        dtype: Computes in this dtype; None = in that of the inputs.
    """
    leaves = {"q": problem.q, "k": problem.k, "v": problem.v}
    if parameters:
        tensors = problem.recipe.tensors()
        leaves |= {name: tensors[name] for name in sorted(problem.recipe.learnable())}
    leaves = {name: tensor.detach().to(dtype or tensor.dtype, copy=True) for name, tensor in leaves.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    learned = {name: leaf for name, leaf in leaves.items() if name not in ("q", "k", "v")}
    recipe = problem.recipe.with_tensors(learned) if learned else problem.recipe
    out = attend(leaves["q"], leaves["k"], leaves["v"], recipe)
    generator = torch.Generator().manual_seed(1)
    # rounded to the dtype of the inputs, so that every dtype of computation gets the same gradient
    upstream = torch.randn(out.shape, generator=generator).to(problem.q).to(out.dtype)
    found = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def plain_attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Dense attention in the dtype of q, differentiable: what a careful user would write without any kernel.

    Returns:
        out in the dtype of q, and lse; half types are computed in float32, their weights rounded to the half type.
    """
    q, k, v = problem.q, problem.k, problem.v
    dtype = torch.promote_types(q.dtype, torch.float32)
    placed = problem.recipe.place(q.shape[-2], k.shape[-2], problem.q_offset)
    scores = dense_scores(q.to(dtype), k.to(dtype), placed).to(dtype)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0)
    lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), -math.inf)
    if placed.sink is not None:
        column = placed.sink.to(dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    weights = weights.masked_fill(empty, 0).to(q.dtype)
    values = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return (weights.to(dtype) @ values.to(dtype)).to(q.dtype), lse


def allowed_error(plain_error: float, dtype: torch.dtype, slack: int = 1) -> float:
    """``slack`` times twice the error of dense attention, but between a least and a most of the dtype's precision.

    Half types are added up in float32: rounding the result is most of their error, so that their multiples are small.
    """
    own, added = torch.finfo(dtype).eps, torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    least, most = max(own, 8 * added), max(4 * own, 64 * added)
    return min(slack * max(2 * plain_error, least), most) if math.isfinite(plain_error) else most


@dataclass(frozen=True)
class Rating:
    """The tensor that is worst off, its relative error in the Euclidean norm, and what is allowed of it."""

    name: str
    error: float
    allowed: float

    @property
    def is_ok(self) -> bool:
        """Whether the error is allowed; that of what is not finite, infinite, never is."""
        return self.error <= self.allowed


def rate(triples: Mapping[str, tuple[Tensor, Tensor, Tensor]], dtype: torch.dtype, slack: int = 1) -> Rating:
    """The two-errors rule on tensors by name, each (got, plain, expected).

    The precision is that of ``dtype``, or of the tensor itself where it is coarser: a float32 parameter of a float64
    call has a float32 gradient.

    Args:
        triples: What was got, what dense attention makes in the same dtype, and what float64 makes.
        dtype: Of the inputs.
        slack: How many times the error of an output is allowed.
    """
    largest = max(float(expected.double().norm()) for _, _, expected in triples.values())
    rated = []
    for name, (got, plain, expected) in triples.items():
        size = float(expected.double().norm())
        # what is zero but for rounding can only be small beside the others
        size = size if size > ZERO * largest else largest or 1.0
        error, plain_error = (_distance(tensor, expected) / size for tensor in (got, plain))
        coarser = max(dtype, got.dtype, key=lambda each: torch.finfo(each).eps)
        rated.append(Rating(name, error, allowed_error(plain_error, coarser, slack)))
    return max(rated, key=lambda rating: rating.error / rating.allowed)


def _verdict(
    where: str,
    check: str,
    triples: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    dtype: torch.dtype,
    slack: int = 1,
) -> Row:
    """A row on tensors by name, each (got, plain, expected): the worst of them decides."""
    rating = rate(triples, dtype, slack)
    detail = f"relative error {rating.error:.1e}, at most {rating.allowed:.1e}"
    if len(triples) > 1:
        detail += f" (of {', '.join(triples)} the worst is {rating.name})"
    return Row(where, check, "ok" if rating.is_ok else "wrong", detail)


def _distance(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape or not bool(torch.isfinite(got).all()):
        return math.inf
    return float((got.double() - expected.double()).norm())
