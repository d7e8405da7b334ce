"""Pages say where what was measured may not be what is at hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks import record
from benchmarks.attention.cases import recipe_digest
from benchmarks.attention.report import Measured, Row
from docs.generator.measured import stale

SHAPE = {"B": 1, "Hq": 1, "Hkv": 1, "q_len": 4096, "kv_len": 4096, "head_dim": 8, "dtype": "float32"}


def measured(version: str, **digest: str) -> Measured:
    run: Row = {"environment": {"torch": version}}
    return Measured(({"recipe": "causal", "shape": SHAPE, **digest},), (run,))


@pytest.mark.parametrize("digest", [{}, {"recipe_digest": recipe_digest("causal")}], ids=["unsaid", "the same"])
def test_what_is_at_hand_is_not(digest: dict[str, str]) -> None:
    assert stale([measured(torch.__version__, **digest)]) == ""


def test_every_committed_record_names_the_file_it_is_of() -> None:
    rows = [row for path in record.result_files() for row in record.read(path) if row["record"] == "attention"]
    assert rows
    assert [row["run_id"] for row in rows if "recipe_digest" not in row] == []


def test_another_torch() -> None:
    assert stale([measured("1.0.1")]) == (
        f"**Stale?** Measured with torch 1.0.1; this page was made with torch {torch.__version__}."
    )


def test_another_file() -> None:
    one, other = measured(torch.__version__), measured(torch.__version__, recipe_digest="0" * 16)
    assert stale([one, other]) == "**Stale?** The file of the recipe has changed since the runs at 4,096 tokens."
