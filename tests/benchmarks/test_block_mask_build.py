"""What is measured: the gate refuses a wrong builder, what cannot fit is skipped, and the command line runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import create_block_mask
from benchmarks import record
from benchmarks.__main__ import SUITES, main
from benchmarks.block_mask_build import BACKENDS, RULES, Cell, cells, describe, gate, lists_bytes, run

GIBIBYTE = 1 << 30


def shifted(rule: Callable[..., Any], *arguments: Any) -> BlockMask:
    return create_block_mask(lambda b, h, q_idx, kv_idx: rule(b, h, q_idx + 200, kv_idx), *arguments)


def all_partial(rule: Callable[..., Any], *arguments: Any) -> BlockMask:
    return create_block_mask(rule, *arguments, separate_full_blocks=False)


def reordered(rule: Callable[..., Any], *arguments: Any) -> BlockMask:
    block_mask: Any = create_block_mask(rule, *arguments)
    block_mask.full_kv_indices[0, 0, 9, :2] = block_mask.full_kv_indices[0, 0, 9, :2].flip(0).clone()
    return block_mask  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RULES)
def test_the_gate_passes_both_builders(name: str) -> None:
    for build in BACKENDS.values():
        assert gate(build, RULES[name]) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (shifted, "kv_num_blocks differs"),
        (all_partial, "kv_num_blocks differs"),
        (reordered, "full_kv_indices differs"),
    ],
)
def test_the_gate_refuses_a_wrong_builder(
    build: Callable[..., BlockMask], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate(build, RULES["causal"]) == message
    monkeypatch.setitem(BACKENDS, "attn_mods", build)
    row = run(Cell("causal", 256, "attn_mods"), GIBIBYTE, seconds=0.01)
    assert (row["status"], row["message"]) == ("wrong", message)
    assert "samples_ms" not in row
    record.validate(row | {"run_id": "test"})


def test_what_cannot_fit_is_skipped() -> None:
    row = run(Cell("causal", 65536, "torch_eager"), GIBIBYTE, seconds=0.01)
    assert (row["status"], row["message"]) == ("skipped", "needs about 40 GiB, 1 are free")
    record.validate(row | {"run_id": "test"})


def test_bytes_of_lists() -> None:
    block_mask = create_block_mask(RULES["causal"](1024, 0), None, None, 1024, 1024, "cpu", 128)
    # 8 x 8 blocks: four lists of indices and four of counts, 4 bytes a number
    assert lists_bytes(block_mask) == 4 * (4 * 64 + 4 * 8)


def test_closures_are_fresh() -> None:
    window = [RULES["sliding_window"](2048, seed) for seed in (1, 2)]
    position = torch.tensor(2000)
    kept = [sum(bool(rule(None, None, position, torch.tensor(key))) for key in range(2048)) for rule in window]
    assert kept == [1025, 1023]


def test_cells_stand_side_by_side() -> None:
    listed = list(cells((256, 512)))
    assert len(listed) == len(set(listed)) == 2 * len(RULES) * len(BACKENDS)
    assert [cell.backend for cell in listed[:2]] == list(BACKENDS)
    assert describe(listed[0])["shape"]["q_len"] == 256


def test_a_tiny_run_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    masks = ["--mask", "document_causal"]
    done = CliRunner().invoke(main, ["run", "block_mask_build", "--suite", "tiny", *masks, "--out", str(path)])
    assert done.exit_code == 0, done.output
    header, *rows = record.read(path)
    assert header["command"] == f"python -m benchmarks run block_mask_build --suite tiny {' '.join(masks)}"
    expected = [cell for cell in cells(SUITES["tiny"].lengths) if cell.recipe in masks]
    assert [Cell(row["recipe"], row["shape"]["q_len"], row["backend"]) for row in rows] == expected
    assert all(row["status"] == "ok" and row["run_id"] == header["run_id"] for row in rows), rows
    assert "BlockMask building on" in done.output
    shown = CliRunner().invoke(main, ["show", str(path)])
    assert shown.exit_code == 0
    assert shown.output.count('"samples_ms"') == len(rows)


def test_a_cell_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import __main__ as command_line

    row = command_line._in_own_process(Cell("causal", -1, "attn_mods"), 0.01)
    assert row["status"] == "failed"
    assert row["message"]
