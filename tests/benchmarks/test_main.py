"""What is wrong with a file or an option is said in a sentence, whatever the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks import record
from benchmarks.__main__ import main

GOLDEN = Path(__file__).parent / "attention" / "golden.jsonl"
LINES = GOLDEN.read_text().splitlines(keepends=True)
FILES = {
    "empty.jsonl": (b"", "it does not begin with the record of a run"),
    "empty.jsonl.gz": (gzip.compress(b""), "it does not begin with the record of a run"),
    "without_run.jsonl": ("".join(LINES[1:]).encode(), "it does not begin with the record of a run"),
    "text.jsonl": (b"once upon a time\n", "not a whole file of records"),
    "cut.jsonl": ("".join(LINES)[:-20].encode(), "not a whole file of records"),
    "cut.jsonl.gz": (gzip.compress("".join(LINES).encode())[:-20], "not a whole file of records"),
    "not_gzipped.jsonl.gz": ("".join(LINES).encode(), "not a whole file of records"),
    "list.jsonl": (b"[]\n", "is not of the form in benchmarks/schema.json: [] is not of type 'object'"),
    "other.jsonl": (b'{"record": "song"}\n', "is not of the form in benchmarks/schema.json: 'song' is not one of"),
    "later.jsonl": (
        LINES[0].replace('"schema": 1', '"schema": 2').replace('"schema":1', '"schema":2').encode(),
        "1 was",
    ),
}


def said(result: Result) -> str:
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.mark.parametrize("command", ["report", "show", "tune"])
@pytest.mark.parametrize("name", list(FILES))
def test_a_file_of_something_else(command: str, name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    assert message in said(run(command, str(tmp_path / name)))


@pytest.mark.parametrize("command", ["report", "show", "tune"])
def test_a_folder(command: str, tmp_path: Path) -> None:
    assert "is a directory" in said(run(command, str(tmp_path)))
    assert "is a directory" in said(run("run", "causal", "--out", str(tmp_path)))


@pytest.mark.parametrize("constant", ["NaN", "Infinity"])
def test_what_is_no_number_is_no_time(constant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.loads(line) for line in LINES]
    timed = next(row for row in rows if "rounds_ms" in row)
    timed["rounds_ms"][0][0] = float(constant.lower())
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.write(path, rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"{constant} is no time" in said(run("report", str(path)))


def test_a_run_of_block_masks_leaves_what_is_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(GOLDEN.read_text())
    asked = "run", "block_mask_build", "--suite", "tiny", "--mask", "causal", "--method", "attn_mods"
    assert "holds something already; name a new file for block_mask_build" in said(run(*asked, "--out", str(path)))
    assert path.read_text() == GOLDEN.read_text()


@pytest.mark.parametrize("option", [("--device", "cuda"), ("--budget", "5")], ids=" ".join)
def test_what_a_run_of_block_masks_on_a_processor_does_not_go_by(option: tuple[str, str]) -> None:
    asked = "run", "block_mask_build", "--suite", "tiny"
    assert "--device cuda and --budget are for --suite gpu" in said(run(*asked, *option))


def test_a_table_is_judged_or_written(tmp_path: Path) -> None:
    asked = "tune", str(GOLDEN), "--against", str(GOLDEN)
    assert "--against writes no table; leave --out out" in said(run(*asked, "--out", str(tmp_path / "a.json")))


def test_a_table_is_judged_on_its_own_card(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.loads(line) for line in LINES]
    rows[0]["environment"]["card"] = "Another GPU"
    record.write(path, rows)
    assert "the later run must be on Example GPU" in said(run("tune", str(GOLDEN), "--against", str(path)))


def test_a_table_of_block_masks_alone(tmp_path: Path) -> None:
    golden = Path(__file__).with_name("golden_card.jsonl")
    out = tmp_path / "a.json"
    assert "the records must be of attention, got none" in said(run("tune", str(golden), "--out", str(out)))
    assert not out.exists()
