"""The command line: what it refuses, what it measures, how it goes on with a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from benchmarks import record
from benchmarks.__main__ import main
from benchmarks.attention import command, measure
from benchmarks.attention.cases import SUITES, Shape, Suite
from benchmarks.attention.command import Choice
from benchmarks.attention.measure import Limits

TINY = Suite((32, 48), ("bench",), 2, (8,), ("float32",))


class Crash(BaseException):
    """What no handler of errors takes."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "cpu", {"quick": TINY})
    monkeypatch.setattr(command, "Limits", lambda: Limits(0.0, 2))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments, "--device", "cpu"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to measure, or give --all"),
        (["causal", "--all"], "name what to measure, or give --all"),
        (["causall"], "did you mean causal"),
        (["causal", "--backends", "eager,flox"], "there is no backend flox; use some of flex,"),
        (["causal", "--suite", "tiny"], "suite tiny is not for attention on cpu; use quick"),
        (["causal", "--method", "attn_mods"], "--mask and --method are for block_mask_build"),
        (["causal", "--case", "tall"], "there is no case tall of causal; there are tiny, bench"),
        (["causal", "full", "--case", "tall"], "there is no case tall of causal, full; there are tiny, bench"),
        (["--all", "--case", "tall"], "there is no case tall of any entry; there are tiny, bench, one,"),
        (["causal", "block_mask_build"], "block_mask_build is measured by itself"),
        (["block_mask_build", "--backends", "flex"], "is measured by itself"),
        (["block_mask_build", "--pass", "forward"], "is measured by itself"),
        (["causal", "--pass", "sideways"], "'sideways' is not one of 'forward', 'backward', 'forward_backward'"),
        (["causal", "--backends", ","], "--backends names none"),
        (["causal", "--budget", "nan"], "--budget is a number of seconds, got nan"),
        (["causal", "--budget", "-5"], "--budget is a number of seconds, got -5"),
        (["block_mask_build", "--suite", "full"], "suite full is not for block_mask_build"),
    ],
    ids=str,
)
def test_refused(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_measured_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "causal.jsonl.gz"
    result = run("causal", "--backends", "sdpa_math,eager", "--out", str(out), "--commit", "abc")
    assert result.exit_code == 0, result.output
    rows = list(record.read(out))
    assert [row["record"] for row in rows] == ["environment", "ceiling", *["attention"] * 12]
    assert rows[0]["command"] == "python -m benchmarks run causal --suite quick --backends sdpa_math,eager"
    assert "## causal, bench: 32 x 32, B=1 Hq=2 Hkv=2 D=8 float32" in result.output
    assert result.output.count("| eager |") == 6
    again = CliRunner().invoke(main, ["report", str(out)], catch_exceptions=False)
    assert again.output.splitlines()[-5:] == result.output.splitlines()[-5:]


def test_two_groups_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "causal.jsonl"
    common = ("causal", "--backends", "eager", "--out", str(out), "--pass", "forward")
    assert run(*common, "--jobs", "2").exit_code == 0
    header, *rows = record.read(out)
    assert " --jobs 2" in header["command"]
    assert [row["what"] for row in rows if row["record"] == "attention"] == ["forward"] * 2
    assert "2 groups are measured already, 0 are left" in run(*common).output


def test_some_passes_alone(tmp_path: Path) -> None:
    out = tmp_path / "causal.jsonl"
    common = ("causal", "--backends", "eager", "--out", str(out))
    assert run(*common, "--pass", "forward").exit_code == 0
    header, *rows = record.read(out)
    assert " --pass forward" in header["command"] and "backward" not in header["command"]
    assert [row["what"] for row in rows if row["record"] == "attention"] == ["forward"] * 2
    assert "2 groups are measured already, 0 are left" in run(*common, "--pass", "forward").output
    assert "measured already" not in run(*common).output


def test_cases_of_each_entry_are_those_it_has() -> None:
    chosen = Choice(("causal", "softcap"), "quick", (), 1.0, "cpu", cases=("approximate", "bench"))
    measured = {(group.entry, group.case) for group in chosen.groups()}
    assert measured == {("causal", "bench"), ("softcap", "approximate"), ("softcap", "bench")}


def test_goes_on_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "slices.jsonl"
    common = ("causal", "full", "--backends", "eager", "--out", str(out))
    result = run(*common, "--budget", "0")
    assert "4 of 4 groups were not measured within 0 s; the same command takes up the rest" in result.output
    begun = 0

    def rows_of_two(*arguments: object, **named: object) -> object:
        nonlocal begun
        begun += 1
        if begun == 3:
            raise Crash
        return rows_of(*arguments, **named)  # type: ignore[arg-type]

    rows_of = measure.rows_of
    monkeypatch.setattr(measure, "rows_of", rows_of_two)
    with pytest.raises(Crash):
        CliRunner().invoke(main, ["run", *common, "--device", "cpu"], catch_exceptions=False, standalone_mode=False)
    assert len([row for row in record.read(out) if row["record"] == "attention"]) == 6
    monkeypatch.setattr(measure, "rows_of", rows_of)
    assert "2 groups are measured already, 2 are left" in run(*common).output
    rows = [row for row in record.read(out) if row["record"] == "attention"]
    assert len(rows) == 12
    assert len({row["run_id"] for row in rows}) == 2
    last = run(*common)
    assert "4 groups are measured already, 0 are left" in last.output
    assert [row for row in record.read(out) if row["record"] == "attention"] == rows


def test_what_is_measured_of_another_recipe_file_is_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "older.jsonl"
    common = ("causal", "--backends", "eager", "--out", str(out))
    run(*common)
    record.write(out, [row | {"recipe_digest": "0" * 16} if "recipe" in row else row for row in record.read(out)])
    assert "measured already" not in run(*common).output
    assert len([row for row in record.read(out) if row["record"] == "attention"]) == 2 * 2 * 3
    assert "2 groups are measured already, 0 are left" in run(*common).output


def test_what_is_named_twice_is_measured_once(tmp_path: Path) -> None:
    out = tmp_path / "once.jsonl"
    twice = "--length", "32", "--length", "32", "--case", "bench", "--case", "bench"
    result = run("causal", "causal", "--backends", "eager,eager", *twice, "--pass", "forward", "--out", str(out))
    assert result.exit_code == 0
    assert len([row for row in record.read(out) if row["record"] == "attention"]) == 1


def test_a_suite_without_such_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = (Shape(1, 2, 2, 32, 32, 8, "float32"),)
    monkeypatch.setitem(SUITES, "cpu", {"compared": Suite((), ("bench",), 0, (), (), shapes)})
    result = run("causal", "--suite", "compared", "--length", "777")
    assert result.exit_code == 2 and "suite compared has nothing of 777 tokens" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_card_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["run", "causal", "--device", "cuda"], catch_exceptions=False)
    assert result.exit_code == 2 and "torch finds no card" in result.output


@pytest.mark.parametrize("name", ["cut.jsonl", "cut.jsonl.gz"])
def test_a_record_that_was_cut_is_measured_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / name
    common = ("causal", "--backends", "eager", "--out", str(out))
    with monkeypatch.context() as patched:  # what a run that is ended has appended is not yet written in one piece
        patched.setattr(record, "write", lambda path, rows: None)
        run(*common)
    whole = list(record.read(out))
    out.write_bytes(out.read_bytes()[:-10])
    result = run(*common)
    assert f"its end was cut; {len(whole) - 1} whole records are kept" in result.output
    assert "1 groups are measured already, 1 are left" in result.output
    rows = [row for row in record.read(out) if row["record"] == "attention"]
    assert len(rows) == 2 * 3 + 2


def test_a_file_that_lacks_its_last_end_of_line_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "line.jsonl"
    common = ("causal", "--backends", "eager", "--pass", "forward", "--out", str(out))
    run(*common, "--length", "32")
    for ending in ("", "\n\n"):
        out.write_text(out.read_text().rstrip("\n") + ending)
        assert "1 groups are measured already, 1 are left" in run(*common, "--budget", "0").output
        assert len([row for row in record.read(out) if row["record"] == "attention"]) == 1


def test_a_damaged_file_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "damaged.jsonl.gz"
    common = ("causal", "--backends", "eager", "--pass", "forward", "--length", "32", "--out", str(out))
    run(*common)
    damaged = bytearray(out.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    out.write_bytes(damaged)
    result = run(*common)
    assert result.exit_code == 2 and "not a file of records, not even to a cut" in " ".join(result.output.split())
    assert out.read_bytes() == damaged


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "letter.jsonl"
    for text, message in {
        "Dear Sir,\nyours\n": "not a file of records, not even to a cut",
        "Dear Sir": "holds no whole record; name another file, or remove it",
        '{"record": "song"}\n': "holds a record of another form: 'song' is not one of",
        '{"record": "song"}\n{"rec': "holds a record of another form: 'song' is not one of",
    }.items():
        out.write_text(text)
        result = run("causal", "--backends", "eager", "--out", str(out))
        assert result.exit_code == 2 and message in " ".join(result.output.split())
        assert out.read_text() == text


@pytest.mark.parametrize("changed", ["card", "processor", "torch"])
def test_a_file_from_elsewhere_is_not_gone_on_with(changed: str, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere.jsonl"
    common = ("causal", "--backends", "eager", "--length", "32", "--pass", "forward", "--out", str(out))
    run(*common)
    header, *rows = record.read(out)
    header["environment"][changed] = "another"
    record.write(out, [header, *rows])
    out.write_bytes(out.read_bytes()[:-10])
    before = out.read_bytes()
    result = run(*common)
    assert result.exit_code == 2 and out.read_bytes() == before
    assert f"'{changed}': 'another'" in result.output and "name another file" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("its process ended with code -9", 1),
        ("what takes the times failed: CUDA out of memory", 1),
        ("RuntimeError: it does not compile", 0),
    ],
    ids=["ended from outside", "no room", "failed by itself"],
)
def test_what_a_process_did_not_come_to_is_measured_again(message: str, left: int, tmp_path: Path) -> None:
    out = tmp_path / "ended.jsonl"
    common = ("causal", "--backends", "eager", "--length", "32", "--pass", "forward", "--out", str(out))
    run(*common)
    *others, row = record.read(out)
    told = ("record", "run_id", "recipe", "recipe_digest", "case", "shape", "backend", "what")
    failed = {name: row[name] for name in told} | {"status": "failed", "message": message}
    record.write(out, [*others, failed])
    again = run(*common).output
    assert (f"{1 - left} groups are measured already, {left} are left" in again) == (left == 0)
    assert [each["status"] for each in record.read(out) if each["record"] == "attention"] == ["failed", "ok"][
        : 1 + left
    ]


def test_an_entry_whose_parameters_fix_the_lengths_says_so() -> None:
    result = run("tree_verification", "causal", "--backends", "eager", "--length", "32", "--pass", "forward")
    assert "--length does not change tree_verification, whose parameters fix the lengths" in result.output
    assert "--length does not" not in run("causal", "--backends", "eager", "--length", "32", "--budget", "0").output
