"""The command line: what it refuses, what it measures, how it goes on with a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks import record
from benchmarks.__main__ import main
from benchmarks.attention import command, measure
from benchmarks.attention.cases import SUITES, Suite
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


@pytest.mark.parametrize("jobs", [1, 2])
def test_some_passes_alone(jobs: int, tmp_path: Path) -> None:
    out = tmp_path / "causal.jsonl"
    common = ("causal", "--backends", "eager", "--out", str(out), "--jobs", str(jobs))
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
