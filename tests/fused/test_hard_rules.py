"""The hard rules of the calculus by their own kernels: what torch keeps, tile for tile."""

from __future__ import annotations

import warnings

import pytest

from attn_mods.fused.form import Unfit, form_of
from attn_mods.fused.source import source_of
from attn_mods.tiles import Grid
from attn_mods.tiles.trace import recorded
from tests.fused.comparison import assert_true_planes, planes_of, true_codes
from tests.fused.written_rules import HARD_WITH_KERNELS, HARD_WITHOUT_KERNELS
from tests.tiles.hard_rules import RULES, hard_case


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", HARD_WITH_KERNELS)
def test_hard_rule(name: str) -> None:
    case = hard_case(name)
    grid = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
    planes = planes_of(case.rule, grid, name)
    assert planes is not None, f"{name}: no kernel"
    assert_true_planes(planes, true_codes(case.rule, grid), name)


@pytest.mark.parametrize("name", sorted(HARD_WITHOUT_KERNELS))
def test_rule_without_a_kernel(name: str) -> None:
    case = hard_case(name)
    grid = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        graph, _ = recorded(case.rule, grid)
    with pytest.raises(Unfit):
        assert graph is not None
        source_of(form_of(graph, grid).form, grid.block_size)


def test_most_rules_have_a_kernel() -> None:
    assert RULES.keys() >= HARD_WITHOUT_KERNELS
    assert len(HARD_WITH_KERNELS) >= 90
