"""Records: what the schema takes and refuses, and files that hold exactly what was written."""

from __future__ import annotations

import copy
import gzip
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks import record
from benchmarks.environment import code_version, environment

GOLDEN = Path(__file__).with_name("golden.jsonl")
OF_A_CARD = list(record.read(Path(__file__).with_name("golden_card.jsonl")))
ENVIRONMENT, OK, *_ = RECORDS = list(record.read(GOLDEN))
NOT_OK = next(row for row in RECORDS if row.get("status") == "skipped")


def changed(row: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The record with other values; None takes the field out."""
    merged = copy.deepcopy(row) | values
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize("row", [*RECORDS, *OF_A_CARD], ids=lambda row: f"{row['record']} {row.get('status', '')}")
def test_golden_records_are_accepted(row: dict[str, Any]) -> None:
    record.validate(row)


def test_the_golden_file_holds_every_status() -> None:
    statuses = {row["status"] for row in RECORDS if row["record"] == "cell"}
    assert statuses == {"ok", "wrong", "failed", "skipped"}


def test_todays_environment_is_accepted() -> None:
    record.validate(ENVIRONMENT | {"environment": environment(), "code": code_version()})


@pytest.mark.parametrize(
    "row",
    [
        changed(OK, samples_ms=None),
        changed(OK, samples_ms=[]),
        changed(OK, samples_ms=[0.0]),
        changed(OK, samples_ms=["1.0"]),
        changed(OK, first_ms=None),
        changed(OK, peak_bytes=None),
        changed(OK, peak_bytes=-1),
        changed(OK, lists_bytes=None),
        changed(OK, gate=None),
        changed(OK, status="fine"),
        changed(OK, status=None),
        changed(OK, run_id=""),
        changed(OK, shape={"q_len": 8}),
        changed(OK, unheard_of=1),
        changed(OK, what="something_else"),
        changed(OK, launches=-1),
        changed(OK, launches=1.5),
        changed(OK, compilations=-1),
        changed(OK, full_width=1),
        changed(OK, host_us=0),
        changed(NOT_OK, host_us=6.5),
        changed(NOT_OK, launches=1),
        changed(NOT_OK, compilations=0),
        changed(NOT_OK, full_width=True),
        changed(OK, record="environment"),
        changed(NOT_OK, samples_ms=[1.0]),
        changed(NOT_OK, first_ms=1.0),
        changed(NOT_OK, peak_bytes=1),
        changed(NOT_OK, lists_bytes=1),
        changed(NOT_OK, message=None),
        changed(NOT_OK, status="ok"),
        changed(OK, status="wrong", message="differs"),
        changed(ENVIRONMENT, schema=2),
        changed(ENVIRONMENT, environment={"card": None}),
        changed(ENVIRONMENT, code=None),
        {},
    ],
    ids=[
        "ok without samples", "no sample", "sample of 0", "sample as text", "no first call", "no peak",
        "negative peak", "no bytes of lists", "no gate", "unknown status", "no status", "empty run", "incomplete shape",
        "unknown field", "unknown subject", "negative launches", "part of a launch", "negative compilations",
        "width as number", "a loop of no time", "skipped with the host's speed",
        "skipped with launches", "skipped with compilations", "skipped with a width",
        "cell as environment", "skipped with samples", "skipped with a first call",
        "skipped with a peak", "skipped with lists", "skipped without a reason", "ok without anything",
        "wrong with samples", "another schema", "incomplete environment", "no code", "empty",
    ],
)  # fmt: skip
def test_the_schema_refuses(row: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        record.validate(row)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    path, again = tmp_path / "new" / name, tmp_path / "again" / name
    assert record.write(path, RECORDS) == record.write(again, iter(RECORDS)) == len(RECORDS)
    assert list(record.read(path)) == RECORDS
    assert path.read_bytes() == again.read_bytes()
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert text == GOLDEN.read_bytes()


def test_nothing_is_written_if_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(jsonschema.ValidationError):
        record.write(path, [ENVIRONMENT, changed(OK, samples_ms=None)])
    assert not path.exists()


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_records_are_added_one_by_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    for count, row in enumerate(RECORDS, start=1):
        record.append(path, row)
        assert list(record.read(path)) == RECORDS[:count]


def test_a_refused_record_is_not_added(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record.append(path, ENVIRONMENT)
    with pytest.raises(jsonschema.ValidationError):
        record.append(path, changed(OK, samples_ms=None))
    assert list(record.read(path)) == [ENVIRONMENT]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(GOLDEN.read_text().replace('"status":"skipped"', '"status":"ok"'))
    with pytest.raises(jsonschema.ValidationError):
        list(record.read(path))
