"""The run on a card, tried on the CPU at tiny lengths: order, gates, and a record for whatever happens."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import create_block_mask
from benchmarks import device_build, record
from benchmarks.__main__ import main
from benchmarks.device_build import LENGTHS, Cell, Run, cells, describe, guarded, sizes
from benchmarks.device_clock import Compilations
from benchmarks.measured_masks import MASKS, PRINCIPAL
from benchmarks.methods import METHODS, Call, Method

TINY = 256
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 79.18 GiB.\nMore."


@pytest.fixture(autouse=True)
def no_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_build, "warm_up", lambda device: None)


def outcome(method: Method, monkeypatch: pytest.MonkeyPatch, length: int = TINY) -> dict[str, Any]:
    """What a run records of another way to build."""
    monkeypatch.setitem(METHODS, "attn_mods", method)
    (row,) = Run("cpu", seconds=0.01, budget=60).records([Cell("causal", length, "attn_mods")])
    record.validate(row | {"run_id": "test"})
    return row


def window(mask: str, length: int, seed: int, device: str) -> Call:
    """A window where a triangle is asked for."""
    rule = MASKS["sliding_window"].closure(window=40)
    return lambda: create_block_mask(rule, None, None, length, length, device)


def triangle(mask: str, length: int, seed: int, device: str) -> Call:
    rule = MASKS["causal"].closure()
    return lambda: create_block_mask(rule, None, None, length, length, device)


def raising(error: Exception) -> Method:
    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        def call() -> BlockMask:
            raise error

        return call

    return Method(prepare)


def test_what_the_bars_are_about_comes_first() -> None:
    listed = cells(MASKS, LENGTHS, METHODS)
    assert len(listed) == len(set(listed))
    first = list(itertools.product((32_768, 131_072), PRINCIPAL))
    places = list(dict.fromkeys((cell.length, cell.mask) for cell in listed))
    assert places[: len(first)] == first
    rest = listed[sum((cell.length, cell.mask) in first for cell in listed) :]
    seconds = [METHODS[cell.method].takes_seconds for cell in rest]
    assert seconds == sorted(seconds)
    quick = [cell.mask in PRINCIPAL for cell in rest if not METHODS[cell.method].takes_seconds]
    assert quick == sorted(quick, reverse=True)


def test_a_cold_call_comes_just_before_the_warm_ones() -> None:
    listed = cells(MASKS, LENGTHS, METHODS)
    for cell, following in itertools.pairwise(listed):
        if cell.method == "torch_compiled_cold":
            assert following == Cell(cell.mask, cell.length, "torch_compiled")
    assert sum(cell.method == "torch_compiled_cold" for cell in listed) == len(MASKS) * len(LENGTHS)


def test_only_what_is_asked_for() -> None:
    asked = cells(["causal"], [524_288, TINY], ["attn_mods_compact", "torch_eager", "attn_mods_first"])
    assert asked == [
        Cell("causal", TINY, "torch_eager"),
        Cell("causal", 524_288, "attn_mods_compact"),
        Cell("causal", 524_288, "torch_eager"),
    ]


def test_a_right_method_gets_times(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(Method(triangle), monkeypatch)
    assert (row["status"], row["gate"]) == ("ok", "lists equal eager torch")
    assert len(row["samples_ms"]) >= 3
    assert row["full_width"] and row["lists_bytes"] == 4 * (4 * 4 + 4 * 2)


def test_every_call_has_fresh_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        seeds.append(seed)
        return triangle(mask, length, seed, device)

    outcome(Method(prepare), monkeypatch)
    assert seeds == list(range(len(seeds)))
    assert len(seeds) >= 5


def test_a_wrong_method_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(Method(window), monkeypatch)
    assert (row["status"], row["message"]) == ("wrong", "kv_num_blocks differs")
    assert "samples_ms" not in row


def test_what_was_compiled_meanwhile_is_gated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = iter([triangle, window])

    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        return next(ways)(mask, length, seed, device)

    counts = iter([Compilations(2), Compilations(0)])

    class Compiling:
        def __enter__(self) -> Compilations:
            return next(counts)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(device_build, "compilations", Compiling)
    row = outcome(Method(prepare, compiles=True), monkeypatch)
    assert (row["status"], row["message"]) == ("wrong", "kv_num_blocks differs")
    assert next(ways, None) is None


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (torch.OutOfMemoryError(OUT_OF_MEMORY), "out_of_memory", "CUDA out of memory. Tried to allocate 16.00 GiB."),
        (RuntimeError("no kernel\nimage"), "failed", "RuntimeError: no kernel"),
        (ValueError(""), "failed", "ValueError: ValueError"),
    ],
    ids=["memory", "failure", "no message"],
)
def test_what_happens_is_a_record(error: Exception, status: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(raising(error), monkeypatch)
    assert row["status"] == status
    assert row["message"] == message


def test_a_card_that_gives_nothing_back_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_memory_back() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    def measure() -> dict[str, Any]:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(device_build, "give_memory_back", give_memory_back)
    assert guarded(measure)["status"] == "failed"


def test_a_method_that_refuses_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    row = outcome(Method(triangle, lambda mask, device: f"not {mask} on {device}"), monkeypatch)
    assert (row["status"], row["message"]) == ("skipped", "not causal on cpu")


def test_one_call_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_build, "LONGEST_CALL_MS", 0.0)
    row = outcome(Method(triangle), monkeypatch)
    assert row["status"] == "skipped"
    assert row["message"].startswith("one call took")


def test_a_first_call_too_long_is_given_up_and_what_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        def compile_for_long() -> BlockMask:
            try:
                time.sleep(5)
            except TimeoutError as error:
                raise RuntimeError("compiler failed") from error
            return triangle(mask, length, seed, device)()

        return compile_for_long

    monkeypatch.setitem(METHODS, "torch_compiled_cold", Method(prepare, once=True))
    monkeypatch.setitem(METHODS, "torch_compiled", Method(triangle, first="torch_compiled_cold"))
    run = Run("cpu", seconds=0.01, budget=60, first_seconds=0.05)
    cells = [
        Cell("causal", length, name)
        for length in (TINY, 2 * TINY)
        for name in ("torch_compiled_cold", "torch_compiled")
    ]
    given_up = ("skipped", "the first call did not end within 0.05 s")
    assert [(row["status"], row["message"]) for row in run.records(cells)] == [given_up] * 4
    (row,) = Run("cpu", seconds=0.01, budget=60).records([Cell("causal", TINY, "torch_compiled")])
    assert row["status"] == "ok"


def test_what_would_take_too_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        calls.append(length)
        return triangle(mask, length, seed, device)

    monkeypatch.setitem(METHODS, "attn_mods", Method(prepare))
    run = Run("cpu", seconds=0.01, budget=60)
    run._call_ms["causal", "attn_mods"] = 128, 6_000.0
    (row,) = run.records([Cell("causal", TINY, "attn_mods")])
    assert (row["status"], calls) == ("skipped", [])
    assert row["message"] == "a call at 128 tokens took 6.0 s; 20 s are allowed"
    run._call_ms["causal", "attn_mods"] = 128, 4_000.0
    (row,) = run.records([Cell("causal", TINY, "attn_mods")])
    assert row["status"] == "ok"


def test_after_the_budget_no_cell_begins() -> None:
    todo = cells(["causal"], [TINY], ["attn_mods", "torch_eager"])
    rows = list(Run("cpu", seconds=0.01, budget=0).records(todo))
    assert [(row["status"], row["message"]) for row in rows] == [("skipped", "the run's 0 s were over")] * 2


def test_one_call_is_all_of_a_cold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def prepare(mask: str, length: int, seed: int, device: str) -> Call:
        calls.append(seed)
        return triangle(mask, length, seed, device)

    row = outcome(Method(prepare, once=True), monkeypatch)
    assert (row["status"], calls, row["samples_ms"]) == ("ok", [0], [row["first_ms"]])
    row = outcome(Method(window, once=True), monkeypatch)
    assert (row["status"], row["message"]) == ("wrong", "kv_num_blocks differs")


def test_narrow_lists_are_not_called_full() -> None:
    block_mask: Any = triangle("causal", 1024, 0, "cpu")()
    assert sizes(block_mask)["full_width"]
    block_mask.kv_indices = torch.zeros(64, dtype=torch.int32).as_strided((1, 1, 8, 8), (32, 32, 4, 1))
    assert not sizes(block_mask)["full_width"]


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_known_before_is_described(mask: str) -> None:
    row = describe(Cell(mask, TINY, "attn_mods"))
    assert (row["recipe"], row["backend"], row["shape"]["B"]) == (mask, "attn_mods", MASKS[mask].batch)
    record.validate(row | {"run_id": "test", "status": "skipped", "message": "a reason"})


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["run", *arguments])


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_run_from_the_command_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    options = ["--suite", "gpu", "--device", "cpu", "--length", str(TINY), "--mask", "causal", "--commit", "abc123"]
    done = invoke("block_mask_build", *options, "--out", str(path))
    assert done.exit_code == 0, done.output
    header, *rows = record.read(path)
    command = "python -m benchmarks run block_mask_build --suite gpu --mask causal --length 256 --device cpu"
    assert (header["command"], header["code"]) == (command, {"git_sha": "abc123", "dirty": None})
    assert [row["backend"] for row in rows] == [cell.method for cell in cells(["causal"], [TINY], METHODS)]
    by_method = {row["backend"]: row for row in rows}
    on_a_card = {name for name in by_method if name.startswith("torch_compiled")}
    assert {name for name, row in by_method.items() if row["status"] != "ok"} == on_a_card, rows
    assert all("on a card" in by_method[name]["message"] for name in on_a_card)
    assert "| causal | 256 |" in done.output


def test_a_cut_run_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl.gz"

    def cut(self: Run, todo: Any) -> Any:
        first, *_ = todo
        yield describe(first) | {"status": "skipped", "message": "a reason"}
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "records", cut)
    assert invoke("block_mask_build", "--suite", "gpu", "--device", "cpu", "--out", str(path)).exit_code != 0
    assert [row["record"] for row in record.read(path)] == ["environment", "cell"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["block_mask_decode"], "block_mask_decode is measured on a card: add --suite gpu"),
        (["block_mask_decode", "--suite", "gpu", "--device", "cpu", "--method", "attn_mods"], "leave --method out"),
        (["block_mask_build", "--mask", "no_such_mask"], "no_such_mask"),
    ],
)
def test_refusals(arguments: list[str], told: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = invoke(*arguments, "--out", str(path))
    assert done.exit_code == 2 and told in done.output
    assert not path.exists()


def test_without_a_card_the_suite_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = invoke("block_mask_build", "--suite", "gpu")
    assert done.exit_code == 2 and "suite gpu needs a card" in done.output


def test_choices_narrow_a_run_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    options = ["--suite", "tiny", "--mask", "causal", "--length", "128", "--method", "torch_eager"]
    done = invoke("block_mask_build", *options, "--out", str(path))
    assert done.exit_code == 0, done.output
    _, *rows = record.read(path)
    assert [(row["recipe"], row["shape"]["q_len"], row["backend"]) for row in rows] == [("causal", 128, "torch_eager")]
