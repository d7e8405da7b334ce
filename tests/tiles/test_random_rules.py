"""Random rules against torch: every claim of the tile calculus true, every BlockMask equal list for list.

``ATTN_MODS_FUZZ_RULES`` sets how many rules run (default 1500; ``make fuzz`` runs 20000). Seeds start at 0, so a larger
run contains the smaller one. Every other seed also sets internal sizes of the calculus small (knobs.py). A failure
names its seed and shows its rule.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from attn_mods.block_mask import create_block_mask
from attn_mods.tiles import Grid, tile_states
from tests.tiles.comparison import Calculus, compare
from tests.tiles.knobs import random_knobs
from tests.tiles.rules import random_case

RULES = int(os.environ.get("ATTN_MODS_FUZZ_RULES", "1500"))
CHUNKS = 15
SHOWN_FAILURES = 5
CALCULUS = Calculus(create_block_mask, tile_states, Grid)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_rules(chunk: int, record_property: Callable[[str, object], None]) -> None:
    seeds = range(chunk, RULES, CHUNKS)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        for seed in seeds:
            case = random_case(seed)
            counts["executed"] += 1
            with random_knobs(seed) as chosen:
                try:
                    counts += compare(case, CALCULUS)
                except AssertionError as error:
                    failures.append(f"{error}\nknobs {chosen}\n{case}")
    unknown = counts["unknown"] / max(counts["tiles"], 1)
    print(f"random rules, chunk {chunk}: {dict(counts)}, share of tiles left UNKNOWN {unknown:.3f}")
    for name in ("executed", "compared", "refused", "refused_by_torch_only"):
        record_property(f"random rules {name.replace('_', ' ')}", counts[name])
    for name in ("tiles", "unknown"):
        record_property(f"random rules, tiles{' left unknown' if name == 'unknown' else ''}", counts[name])
    shown = "\n\n".join(failures[:SHOWN_FAILURES])
    assert not failures, f"{len(failures)} of {counts['executed']} rules differ from torch:\n\n{shown}"
    assert counts["executed"] == len(seeds)
    assert counts["compared"] + counts["refused"] + counts["refused_by_torch_only"] == len(seeds)
    if len(seeds) >= 50:
        assert counts["compared"] >= 0.9 * len(seeds), "the generator writes too many rules that torch refuses"
        assert counts["kept_some"] >= 0.4 * len(seeds), "the generator writes too many rules that keep all or nothing"
        assert unknown < 0.5, "the calculus decides too little"


def test_chunks_cover_every_seed() -> None:
    seeds = sorted(seed for chunk in range(CHUNKS) for seed in range(chunk, RULES, CHUNKS))
    assert seeds == list(range(RULES))


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_a_seed_is_one_rule_for_ever(seed: int) -> None:
    first, second = random_case(seed), random_case(seed)
    assert first.source == second.source
    assert first.tables.keys() == second.tables.keys()
    assert all(
        torch.equal(table.nan_to_num(), second.tables[name].nan_to_num()) for name, table in first.tables.items()
    )
