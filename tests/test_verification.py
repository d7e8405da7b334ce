"""verify() notices what is wrong, in the row that is about it, and passes what is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import masks, scores
from attn_mods.backend_checks import (
    Problem,
    allowed_error,
    check_gradients,
    check_lse,
    check_output,
    gradients,
    plain_attention,
)
from attn_mods.backends import Call
from attn_mods.backends.eager import EAGER
from attn_mods.entry import Case, Entry
from attn_mods.entry_checks import Row, expand
from attn_mods.mask import Mask, MaskMod
from attn_mods.oracle import reference
from attn_mods.recipe import Recipe
from attn_mods.score import Score, ScoreMod
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, States
from attn_mods.verification import DTYPES, Report, case_of, verify

BLOCKS = {"blocks of 128x128 = dense", "blocks of 32x64 = dense"}
RULE = {"rule = dense"}
TRIANGLE = "\n".join("x" * (row + 1) + "." * (7 - row) for row in range(8))


@dataclass(frozen=True, eq=False)
class Right(Mask):
    """A causal mask in which nothing is wrong."""

    entry = Entry(title="t", summary="s.", cases={})

    def mask_mod(self) -> MaskMod:
        """Causal."""

        def right(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx <= q_idx

        return right

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A triangle."""
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril()


class WrongRule(Right):
    """Its rule keeps one key more."""

    def mask_mod(self) -> MaskMod:
        """Wrong."""

        def wrong_rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx <= q_idx + 1

        return wrong_rule


class WrongDense(Right):
    """Its dense form misses one pair."""

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Wrong at the last query."""
        dense = super().dense(q_len, kv_len)
        dense[q_len - 1, 0] = False
        return dense


class WrongPicture(Right):
    """Drawn with one mark too many."""


class FullStates(Right):
    """Claims that the last block of each row is full."""

    def tile_states(self, grid: Grid) -> States:
        """Wrong on the diagonal."""
        codes = super().tile_states(grid).codes.clone()
        codes[codes == MIXED] = FULL
        return States(codes)


class EmptyStates(Right):
    """Claims that nothing is seen."""

    def tile_states(self, grid: Grid) -> States:
        """Wrong nearly everywhere."""
        codes = torch.full((1, 1, grid.rows, grid.columns), EMPTY, dtype=torch.uint8)
        return States(codes)


@dataclass(frozen=True, eq=False)
class RightScore(Score):
    """Adds the distance, with a learnable factor."""

    factor: Tensor

    additive = True
    entry = Entry(title="t", summary="s.", cases={})

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """Adds."""
        factor = self.factor

        def right_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + factor[0] * (kv_idx - q_idx) / 100

        return right_score

    def dense(self, scores: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Adds a matrix."""
        return scores + self.factor.to(scores.dtype) * (j[None, :] - i[:, None]).to(scores.dtype) / 100


class WrongScore(RightScore):
    """Its rule is off by one position."""

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """Wrong."""
        factor = self.factor

        def wrong_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + factor[0] * (kv_idx - q_idx + 1) / 100

        return wrong_score


class NaNScore(RightScore):
    """Its rule is not a number."""

    def score_mod(self, backend: str = "flex") -> ScoreMod:
        """Wrong."""

        def nan_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score * math.nan

        return nan_score


def enter(monkeypatch: pytest.MonkeyPatch, cls: type[Any], picture: str = "") -> str:
    """Put a class into the catalogue; its name there."""
    if issubclass(cls, Mask):
        make, listed, kind = (lambda q_len, kv_len, device: cls()), masks, "mask"
    else:
        make, listed, kind = (lambda q_len, kv_len, device: cls(torch.tensor([0.5]))), scores, "score"
    cases = {"tiny": Case(make), "bench": Case(make, ((64, 192),))}
    entry = replace(cls.entry, name=cls.__name__, kind=kind, build=cls, cases=cases, picture=picture)
    monkeypatch.setattr(cls, "entry", entry)
    monkeypatch.setattr(listed, "ALL", (*listed.ALL, cls))
    return cls.__name__


def wrong_checks(report: Report) -> set[str]:
    return {row.check for row in report.rows if row.outcome == "wrong"}


@pytest.mark.parametrize(
    ("cls", "picture", "wrong"),
    [
        (WrongRule, TRIANGLE, RULE | BLOCKS | {"eager = float64", "eager lse", "eager gradients"}),
        (WrongDense, TRIANGLE, {"picture"} | RULE | BLOCKS | {"eager = float64", "eager lse", "eager gradients"}),
        (WrongPicture, TRIANGLE.replace("x.", "xx", 1), {"picture"}),
        (FullStates, TRIANGLE, BLOCKS),
        (EmptyStates, TRIANGLE, BLOCKS),
        (WrongScore, "", RULE | {"eager lse"}),
        (NaNScore, "", RULE | {"eager = float64", "eager lse", "eager gradients"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_entry_is_wrong_in_its_own_rows(
    cls: type[Mask | Score], picture: str, wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verify(enter(monkeypatch, cls, picture), backends=["eager"])
    assert not report.ok
    assert wrong_checks(report) == wrong


@pytest.mark.parametrize("cls", [Right, RightScore])
def test_a_right_entry_is_ok(cls: type[Mask | Score], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Row] = []
    picture = TRIANGLE if cls is Right else ""
    backends = ["sdpa_flash", "sdpa_math", "eager"]
    report = verify(enter(monkeypatch, cls, picture), backends=backends, on_row=seen.append)
    assert report.ok, str(report)
    assert report.rows == seen
    assert (report.name, report.device) == (cls.__name__, "cpu")
    own = {"picture"} | RULE | BLOCKS if cls is Right else RULE
    outputs = {f"{backend} = float64" for backend in backends}
    right = {row.check for row in report.rows if row.outcome == "ok"}
    assert right == own | outputs | {f"{backend} gradients" for backend in backends} | {"eager lse"}
    unsupported = {row.check for row in report.rows if row.outcome == "unsupported"}
    assert unsupported == {"sdpa_flash lse", "sdpa_math lse"}
    cases = {row.case for row in report.rows if row.check == "eager = float64"}
    assert cases == {"tiny", "bench"}


def test_every_backend_has_a_row_and_flex_runs_on_tiny_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify(enter(monkeypatch, Right, TRIANGLE))
    assert report.ok, str(report)
    assert [row.case for row in report.rows if row.check == "flex = float64"] == ["tiny"]
    reasons = {row.check: row.detail for row in report.rows if row.outcome == "unsupported"}
    assert {"flex lse", "flex gradients", "sdpa_cudnn", "sdpa_efficient"} <= set(reasons)
    assert all(reasons.values())


@pytest.mark.parametrize("cls", [FullStates, EmptyStates])
def test_compiled_flex_shows_wrong_states(cls: type[Mask], monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_checks(verify(enter(monkeypatch, cls, TRIANGLE), backends=["flex"])) == BLOCKS | {"flex = float64"}


def patched(change: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]) -> Callable[..., Any]:
    real = type(EAGER).run

    def run(self: Any, call: Call) -> tuple[Tensor, Tensor | None]:
        return change(*real(self, call))

    return run


OUTPUT_ALONE = {"eager = float64"}
OUTPUT_AND_GRADIENTS = {"eager = float64", "eager gradients"}


def nan_at_the_end(out: Tensor) -> Tensor:
    out = out.clone()
    out[-1, -1, -1, -1] = math.nan
    return out


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda out, lse: (out * 0.5, lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (out * (1 + 1e-5), lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (out * math.nan, lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (nan_at_the_end(out), lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (out * math.inf, lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (torch.zeros_like(out) * out, lse), OUTPUT_AND_GRADIENTS),
        (lambda out, lse: (out.double(), lse), OUTPUT_ALONE),
        (lambda out, lse: (out.detach() + 0.5 * (out - out.detach()), lse), {"eager gradients"}),
        (lambda out, lse: (out, None if lse is None else lse + 1e-3), {"eager lse"}),
        (lambda out, lse: (out, None if lse is None else lse * math.log(2)), {"eager lse"}),
        (lambda out, lse: (out, None if lse is None else lse * math.nan), {"eager lse"}),
        (lambda out, lse: (out, None if lse is None else lse.where(lse != lse[0, 0, 0], -math.inf)), {"eager lse"}),
        (lambda out, lse: (out, None if lse is None else lse.double()), {"eager lse"}),
        (lambda out, lse: (out, None if lse is None else lse[:1]), {"eager lse"}),
    ],
    ids=[
        "halved", "a little larger", "NaN", "one NaN", "infinite", "zero", "another dtype", "gradients halved",
        "lse shifted", "lse in base 2", "lse NaN", "an empty row", "lse of another dtype", "lse of another shape",
    ],
)  # fmt: skip
def test_a_broken_backend_is_wrong_in_its_own_rows(
    change: Callable[..., Any], wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(EAGER), "run", patched(change))
    report = verify("sliding_window", backends=["eager", "sdpa_math"])
    assert wrong_checks(report) == wrong
    assert not report.ok


def test_a_gradient_of_a_parameter_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(EAGER).run

    def run(self: Any, call: Call) -> tuple[Tensor, Tensor | None]:
        tensors = {name: tensor.detach() for name, tensor in call.recipe.tensors().items()}
        return real(self, replace(call, recipe=call.recipe.with_tensors(tensors)))

    monkeypatch.setattr(type(EAGER), "run", run)
    report = verify("kerple", backends=["eager"])
    assert wrong_checks(report) == {"eager gradients"}
    (row,) = (row for row in report.rows if row.check == "eager gradients")
    assert "the worst is score.r" in row.detail


def test_empty_rows_are_compared_by_place() -> None:
    problem = Problem.of(Recipe(mask=masks.Causal() & masks.LeftPadding(torch.tensor([3, 0]))), 16, 16, torch.float32)
    assert check_lse("tiny", "eager", problem).outcome == "ok"
    _, lse = reference(problem.q, problem.k, problem.v, problem.recipe, return_lse=True)
    assert bool((lse == -math.inf).any())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(mask=masks.SlidingWindow(window=5)),
        Recipe(mask=masks.Causal(), score=scores.Softcap(cap=3.0), sink=torch.linspace(-1, 1, 4)),
        Recipe(mask=masks.Causal() & masks.LeftPadding(torch.tensor([3, 0])), sink=torch.zeros(4)),
    ],
    ids=lambda recipe: recipe.name,
)
def test_plain_attention_is_attention(recipe: Recipe, dtype: torch.dtype) -> None:
    problem = Problem.of(recipe, 40, 40, dtype)
    out, lse = plain_attention(problem)
    expected, expected_lse = reference(problem.q, problem.k, problem.v, recipe, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-6)
    for check in (check_output, check_lse):
        assert check("tiny", "eager", problem).outcome == "ok"
    assert check_gradients("tiny", "eager", problem, parameters=True).outcome == "ok"


def test_gradients_of_plain_attention_and_of_the_reference() -> None:
    recipe = Recipe(mask=masks.Causal(), sink=torch.linspace(-1, 1, 4))
    problem = Problem.of(recipe, 12, 12, torch.float64)
    of_reference = gradients(lambda q, k, v, recipe: reference(q, k, v, recipe), problem, parameters=True)
    of_plain = gradients(lambda q, k, v, recipe: plain_attention(Problem(recipe, q, k, v))[0], problem, parameters=True)
    assert set(of_reference) == set(of_plain) == {"q", "k", "v", "sink"}
    for name, expected in of_reference.items():
        # the sink of this recipe is float32, and so is its gradient
        torch.testing.assert_close(of_plain[name], expected, rtol=1e-6, atol=1e-9)
        assert bool((expected != 0).any())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_allowance_has_a_least_and_a_most(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    assert allowed_error(0.0, dtype) >= eps
    assert allowed_error(2 * eps, dtype) in (4 * eps, 8 * eps)
    most = allowed_error(1.0, dtype)
    assert most == allowed_error(math.inf, dtype) == allowed_error(math.nan, dtype) == allowed_error(1.0, dtype, 100)
    assert 0 < most <= 64 * eps
    assert most < 0.05


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", ["causal", "alibi", "kerple"])
def test_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    report = verify(name, backends=["sdpa_math", "eager"], dtype=dtype)
    assert report.ok and report.dtype == dtype, str(report)
    assert str(dtype).removeprefix("torch.") in str(report)
    assert "eager = float64" in {row.check for row in report.rows if row.outcome == "ok"}


def test_half_types_are_what_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that float32 would not be allowed, and half types are."""
    exact = EAGER.run

    def rounded(self: object, call: Call) -> tuple[Tensor, Tensor | None]:
        out, lse = exact(call)
        return out.bfloat16().to(out.dtype), lse

    monkeypatch.setattr(type(EAGER), "run", rounded)
    assert not verify("causal", backends=["eager"]).ok
    assert verify("causal", backends=["eager"], dtype=torch.bfloat16).ok


@pytest.mark.parametrize("dtype", [torch.int8, "bfloat16", None], ids=str)
def test_dtypes_that_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"dtype must be one of torch.float32, .* got"):
        verify("causal", dtype=dtype)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"causal: there is no backend flash9; use some of flex, .*eager"):
        verify("causal", backends=["eager", "flash9"])
    with pytest.raises(KeyError, match="there is no entry 'causl'"):
        verify("causl")
    with pytest.raises(ValueError, match="causal: there is no case 'huge'; use one of tiny"):
        case_of(am.info("causal"), "huge")


def test_a_report_prints_its_rows() -> None:
    rows = [Row("tiny 8x8", "picture", "ok"), Row("tiny", "flex", "wrong", "relative error 0.5")]
    report = Report("causal", "cpu", rows)
    printed = str(report)
    assert "causal on cpu" in printed
    for row in rows:
        (line,) = (line for line in printed.splitlines() if f" {row.check} " in line)
        assert all(word in line for word in (row.case, row.outcome, row.detail))


def test_nothing_checked_is_not_ok() -> None:
    assert not Report("causal", "cpu").ok
    assert not Report("causal", "cpu", [Row("tiny", "flex", "unsupported")]).ok
    assert Report("causal", "cpu", [Row("tiny", "flex", "unsupported"), Row("tiny", "picture", "ok")]).ok


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask.kv_indices[0, 0, 1].fill_(9), "kv_indices names a block that does not exist"),
        (lambda mask: mask.full_kv_indices[0, 0, 3].copy_(mask.full_kv_indices[0, 0, 3].flip(0)), "not ascending"),
        (lambda mask: mask.q_num_blocks.zero_(), "q_indices is not the transpose"),
        (lambda mask: mask.full_q_num_blocks.zero_(), "full_q_indices is not the transpose"),
    ],
    ids=["out of range", "order", "partial transpose", "full transpose"],
)
def test_damaged_lists_are_refused(change: Callable[[Any], object], message: str) -> None:
    block_mask: Any = masks.Causal().block_mask(128, block_size=32, device="cpu")
    ruled = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()
    assert torch.equal(expand(block_mask, ruled), ruled)
    change(block_mask)
    with pytest.raises(ValueError, match=message):
        expand(block_mask, ruled)
