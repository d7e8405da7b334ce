"""Decoding, tried on the CPU: every step is timed, gated and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from attn_mods import Mask
from benchmarks import device_decode, record
from benchmarks.__main__ import main
from benchmarks.device_decode import LENGTHS, STEPS, Cell, cells, describe, records
from benchmarks.measured_masks import MASKS, PRINCIPAL


@pytest.fixture(autouse=True)
def no_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_decode, "warm_up", lambda device: None)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(device_decode, "STEPS", 6)
    monkeypatch.setattr(device_decode, "GATED_EVERY", 2)
    return 6


def test_what_is_decoded_with() -> None:
    assert cells(MASKS, LENGTHS) == [Cell(mask, length) for mask in PRINCIPAL for length in LENGTHS]


@pytest.mark.parametrize("mask", PRINCIPAL)
def test_every_step_is_timed(mask: str, few_steps: int) -> None:
    (row,) = records([Cell(mask, 512)], "cpu")
    record.validate(row | {"run_id": "test"})
    assert (row["status"], row["what"], row["gate"]) == ("ok", "block_mask_decode", "lists equal those made on the CPU")
    assert len(row["samples_ms"]) == few_steps
    assert (row["shape"]["q_len"], row["shape"]["kv_len"]) == (1, 512)


def test_the_steps_cross_the_edge_of_a_block() -> None:
    for length in LENGTHS:
        parameters = describe(Cell("causal", length))["parameters"]
        blocks = {
            position // 128 for position in range(parameters["first_position"], parameters["first_position"] + STEPS)
        }
        assert len(blocks) >= 2


def test_wrong_lists_get_no_time(few_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = Mask.block_mask

    def block_mask(self: Mask, q_len: int, kv_len: int, *, q_offset: int, **options: Any) -> Any:
        seen.append(q_offset)
        return plain(self, q_len, kv_len, q_offset=q_offset + 128 * (len(seen) % 2), **options)

    monkeypatch.setattr(Mask, "block_mask", block_mask)
    (row,) = records([Cell("causal", 512)], "cpu")
    assert row["status"] == "wrong" and "differs at position" in row["message"]


def test_what_fails_is_a_record() -> None:
    (row,) = records([Cell("dilated_blocks_and_global_tokens", 512)], "cpu")
    assert (row["status"], row["message"]) == (
        "failed",
        "ValueError: dilated_blocks_and_global_tokens: no entry has this rule; choose another mask",
    )


@pytest.mark.usefixtures("few_steps")
def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    options = ["--suite", "gpu", "--device", "cpu", "--length", "512", "--out", str(path)]
    done = CliRunner().invoke(main, ["run", "block_mask_decode", *options])
    assert done.exit_code == 0, done.output
    _, *rows = record.read(path)
    assert [row["recipe"] for row in rows] == list(PRINCIPAL)
    assert all(row["status"] == "ok" for row in rows), rows
    assert "| causal | 512 |" in done.output
