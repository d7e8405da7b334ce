"""The page of the golden records of a card: every table of it, cards apart, reasons where there is no time."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import record
from benchmarks.__main__ import main
from benchmarks.bars import Bar, Value
from benchmarks.card_report import TITLES, bars_table, markdown_table, page
from benchmarks.methods import METHODS

FOLDER = Path(__file__).parent
CARD, PROCESSOR = FOLDER / "golden_card.jsonl", FOLDER / "golden.jsonl"
RECORDS = list(record.read(CARD))
EXPECTED = FOLDER.joinpath("golden_card.md").read_text(encoding="utf-8")


def test_the_page_is_the_golden_one() -> None:
    assert page([RECORDS]) == EXPECTED


def silent(subject: str, reason: str = "") -> Bar:
    return Bar(subject, 1, "", False, Value(None, reason), Value(None))


def test_bars_of_which_nothing_is_known_are_a_sentence() -> None:
    held_to = [silent(subject) for subject in ("a, 1 token: time", "a, 1 token: memory", "b")]
    assert list(bars_table(held_to)) == ["Not measured in this run: *time* and *memory* of a, 1 token; and *b*."]


def test_a_reason_for_nothing_measured_stays_in_the_table() -> None:
    (table,) = bars_table([silent("a: time", "a, skipped: no entry")])
    assert table.splitlines()[-1] == "| a: time | <= 1 | not measured (a, skipped: no entry) | not measured |"


def test_the_command_line_prints_it() -> None:
    done = CliRunner().invoke(main, ["report", str(CARD)])
    assert (done.exit_code, done.output) == (0, EXPECTED)


def test_processors_come_as_tables_before_the_page() -> None:
    done = CliRunner().invoke(main, ["report", str(CARD), str(PROCESSOR)])
    assert done.output.startswith("BlockMask building on Example processor")
    assert done.output.endswith(EXPECTED)


def test_the_golden_records_hold_every_status() -> None:
    statuses = {row["status"] for row in RECORDS if row["record"] == "cell"}
    assert statuses == {"ok", "wrong", "failed", "skipped", "out_of_memory"}


def test_every_method_has_a_title() -> None:
    assert set(TITLES) == set(METHODS)


def test_runs_of_one_card_stand_together_and_are_not_mixed() -> None:
    other = copy.deepcopy(RECORDS)
    other[0]["environment"]["card"] = "Another card"
    later = copy.deepcopy(RECORDS)
    later[0]["run_id"] = "later"
    text = page([RECORDS, other, later])
    assert text.count("## Example card\n") == text.count("## Another card\n") == 1
    first, second = text.split("## Another card\n")
    assert first.count("run golden:") == first.count("run later:") == 2
    assert (second.count("run golden:"), second.count("run later:")) == (2, 0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ({"git_sha": "0123456789abcdef", "dirty": True}, "commit 0123456789ab, changed"),
        ({"git_sha": "0123456789abcdef", "dirty": None}, "commit 0123456789ab;"),
        ({"git_sha": None, "dirty": None}, "commit not known"),
    ],
)
def test_which_code_was_measured(code: dict[str, object], told: str) -> None:
    assert told in page([[RECORDS[0] | {"code": code}, *RECORDS[1:]]])


def test_text_cannot_break_a_table() -> None:
    assert markdown_table(["a", "b"], [["1|2", "3\n4"]]).splitlines()[-1] == "| 1\\|2 | 3 4 |"
