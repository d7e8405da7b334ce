"""One rule, torch's answer and ours: what it means that they agree."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

from attn_mods.tiles import UNKNOWN, RuleError
from tests.block_mask_equality import assert_same_block_mask, assert_sound, dense_truth
from tests.tiles.rules import Case

# What the installed torch can be asked for: separate_full_blocks and compute_dq_write_order came with torch 2.13.
OPTIONS = frozenset(inspect.signature(torch_create_block_mask).parameters)
# A rule that fails only at certain positions: a tile that is never scanned does not meet them.
VALUE_ERRORS = ("ZeroDivisionError", "index out of range", "out of bounds")

# By name: the mutants of the package have a class of their own.
RULE_ERROR = RuleError.__name__


class Calculus(NamedTuple):
    """The functions under test: the package's, or a mutant's."""

    create_block_mask: Callable[..., Any]
    tile_states: Callable[..., Any]
    Grid: Callable[..., Any]


def build(builder: Callable[..., Any], case: Case) -> Any:
    """The BlockMask of a case, or the error raised. The seed varies how B, H and the optional lists are asked for."""
    B = None if case.B == 1 and case.seed % 3 == 0 else case.B
    H = None if case.H == 1 and case.seed % 4 == 0 else case.H
    options: dict[str, Any] = {}
    if "separate_full_blocks" in OPTIONS:
        options["separate_full_blocks"] = case.seed % 5 != 0
    if "compute_dq_write_order" in OPTIONS and case.seed % 7 == 0:
        options |= {"compute_dq_write_order": True, "dq_kv_order": case.seed % 2 == 0}
    try:
        return builder(case.rule, B, H, case.q_len, case.kv_len, "cpu", BLOCK_SIZE=case.block_size, **options)
    except Exception as error:
        return error


@dataclass(frozen=True)
class Expectation:
    """What torch makes of a case: its BlockMask and dense mask, or the error it raises."""

    block_mask: Any
    truth: Tensor | None
    error: Exception | None = None

    @classmethod
    def of(cls, case: Case) -> Expectation:
        block_mask = build(torch_create_block_mask, case)
        if isinstance(block_mask, Exception):
            return cls(None, None, block_mask)
        return cls(block_mask, dense_truth(case.rule, case.B, case.H, case.q_len, case.kv_len))


def assert_same_refusal(got: Exception, expected: Exception) -> None:
    """Raise AssertionError unless a rule that torch refuses is refused as no mask_mod, or with torch's own error."""
    if isinstance(got, type(expected)) or RULE_ERROR in {kind.__name__ for kind in type(got).__mro__}:
        return
    raise AssertionError(f"torch raises {expected!r}, create_block_mask raises {got!r}") from got


def compare(case: Case, calculus: Calculus, expected: Expectation | None = None) -> Counter[str]:
    """Raise AssertionError where the calculus and torch differ on a case, else count what was seen."""
    expected = expected or Expectation.of(case)
    got = build(calculus.create_block_mask, case)
    if expected.error is not None:
        if isinstance(got, Exception):
            assert_same_refusal(got, expected.error)
            return Counter(refused=1)
        if any(words in str(expected.error) for words in VALUE_ERRORS):
            return Counter(refused_by_torch_only=1)
        raise AssertionError(f"torch refuses this rule ({expected.error!r}), create_block_mask does not")
    assert expected.truth is not None
    if isinstance(got, Exception):
        raise AssertionError(f"torch accepts this rule, create_block_mask raises {got!r}") from got
    grid = calculus.Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
    states = calculus.tile_states(case.rule, grid)
    assert_sound(states, expected.truth, grid)
    assert_same_block_mask(got, expected.block_mask)
    return Counter(
        compared=1,
        kept_some=expected.truth.unique().numel() - 1,
        tiles=states.codes.numel(),
        unknown=int((states.codes == UNKNOWN).sum()),
    )
