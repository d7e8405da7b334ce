"""Random rules by their own kernels: what torch keeps, tile for tile."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable

import pytest

from attn_mods.tiles import Grid, RuleError
from tests.fused.comparison import assert_true_planes, planes_of, true_codes
from tests.tiles.rules import Case, random_case

pytestmark = pytest.mark.usefixtures("interpreter")

RULES = int(os.environ.get("ATTN_MODS_FUZZ_KERNELS", "30"))
CHUNKS = 2


def outcome(case: Case) -> str:
    """What became of a rule: "fused", "unfit" or "refused" by torch. Raises AssertionError if a code is not true."""
    grid = Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H)
    separate = case.seed % 5 != 0
    try:
        expected = true_codes(case.rule, grid, separate)
    except Exception:  # torch's own, of a rule that it refuses
        return "refused"
    try:
        planes = planes_of(case.rule, grid, "random rule", separate)
    except RuleError:  # a number returned, which torch refuses too
        return "refused"
    if planes is None:
        return "unfit"
    assert_true_planes(planes, expected, f"seed {case.seed}")
    return "fused"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_rules(chunk: int, record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    seeds = range(chunk, RULES, CHUNKS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, in the interpreter: of numbers that overflow, as they do in torch
        for seed in seeds:
            case = random_case(seed)
            try:
                counts[outcome(case)] += 1
            except AssertionError as error:
                failures.append(f"{error}\n{case}")
    print(f"random rules by kernels, chunk {chunk}: {dict(counts)}")
    for name, count in counts.items():
        record_property(f"random rules by kernels, {name}", count)
    assert not failures, "\n\n".join(failures)
    assert counts.total() == len(seeds)
    assert counts["fused"] >= 0.3 * len(seeds), "too few of the random rules have kernels"
