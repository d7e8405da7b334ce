"""Every mask of the catalogue by its own kernels: what its rule keeps, tile for tile."""

from __future__ import annotations

import pytest

import attn_mods as am
from attn_mods import registry
from attn_mods.mask import Mask
from attn_mods.tiles import Grid
from tests.fused.comparison import assert_true_planes, planes_of, true_codes

pytestmark = pytest.mark.usefixtures("interpreter")

LENGTH = 45

# Their rules look up at both positions, and have tile states of their own.
UNFIT = {"tree_verification", "selected_blocks"}


def made(name: str, case: str) -> tuple[Mask, Grid]:
    """The mask of a case, and the first lengths that it is defined for."""
    entry_case = registry.info(name).cases[case]
    q_len, kv_len = (entry_case.lengths or ((LENGTH, LENGTH),))[0]
    mask: Mask = entry_case.make(q_len, kv_len, "cpu")
    batch, heads = mask.batch_and_heads()
    return mask, Grid(q_len, kv_len, (16, 16), batch, heads)


def is_run(name: str, case: str) -> bool:
    """The smallest case of each entry, and those with parameters of their own for each sample or head."""
    return name not in UNFIT and case != "bench" and (case == "tiny" or made(name, case)[0].batch_and_heads() != (1, 1))


CASES = [(name, case) for name in am.names(kind="mask") for case in registry.info(name).cases if is_run(name, case)]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case}" for name, case in CASES])
def test_entry(name: str, case: str) -> None:
    mask, grid = made(name, case)
    rule = mask.mask_mod()
    planes = planes_of(rule, grid, name)
    assert planes is not None, f"{name} {case}: no kernel"
    assert_true_planes(planes, true_codes(rule, grid), f"{name} {case}")


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_entry_without_a_kernel(name: str) -> None:
    mask, grid = made(name, "tiny")
    assert planes_of(mask.mask_mod(), grid, name) is None


@pytest.mark.parametrize("name", ["causal", "document", "chunked_causal"])
def test_moved_entry_and_its_compositions(name: str) -> None:
    mask, _ = made(name, "tiny")
    window = am.get("sliding_window", window=9)
    for composed in (mask.shift(q=11, kv=2), ~mask | window, mask & window.shift(q=3)):
        rule = composed.mask_mod()
        grid = Grid(20, 34, (16, 16))
        planes = planes_of(rule, grid, name)
        assert planes is not None
        assert_true_planes(planes, true_codes(rule, grid), name)


def test_enough_cases() -> None:
    assert {name for name, _ in CASES} | UNFIT == set(am.names(kind="mask"))
    assert sum(case != "tiny" for _, case in CASES) >= 10
