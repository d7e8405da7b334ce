"""Records: JSON Lines, one measured cell a line, all samples kept, the environment once per run."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = Path(__file__).with_name("schema.json")
RESULTS = Path(__file__).with_name("results")
LARGEST_PART = 2**16
"""Bytes that are read at a time of a file that may be cut."""


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def validate(record: dict[str, Any]) -> None:
    """Raise ``jsonschema.ValidationError`` unless the record has the documented form."""
    _validator().validate(record)


def write(path: Path, records: Iterable[dict[str, Any]]) -> int:
    """Validate and write records, gzipped if the name ends in .gz; returns how many."""
    lines = [_line(record) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}")
    whole.write_bytes(_packed(path, "".join(lines)))
    whole.replace(path)  # at once: who is killed meanwhile leaves the old file
    return len(lines)


def append(path: Path, record: dict[str, Any]) -> None:
    """Validate a record and add it to a file, so that a run which is cut keeps what it measured."""
    line = _line(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(_packed(path, line))


def _line(record: dict[str, Any]) -> str:
    validate(record)
    return json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False) + "\n"


def _packed(path: Path, text: str) -> bytes:
    # a fixed time stamp keeps equal records equal as files
    return gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, validated.

    Raises:
        ValueError: A file that was cut, or is none of records.
    """
    raw = path.read_bytes()
    try:
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        parsed = [_parsed(line) for line in text.splitlines() if line]
    except (EOFError, ValueError, OSError, zlib.error) as error:
        raise ValueError(
            f"{path}: not a whole file of records ({error}); if its writing was cut, the command that wrote it, given "
            "the same --out, keeps the records before the cut"
        ) from error
    for record in parsed:
        validate(record)
        yield record


def read_to_the_cut(path: Path) -> Iterator[dict[str, Any]]:
    """The same of a file whose last record may have been cut while it was written: all records before that one.

    Raises:
        ValueError: A file that is damaged elsewhere, or is none of records.
    """
    try:
        *lines, _ = _text_to_the_cut(path).split("\n")
        parsed = [_parsed(line) for line in lines if line]
    except (ValueError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: not a file of records, not even to a cut ({error})") from error
    for record in parsed:
        validate(record)
        yield record


def _text_to_the_cut(path: Path) -> str:
    """What can be read of a file; a gzipped one has each appended record in a part of its own."""
    parts = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file, suppress(EOFError):
        while part := file.read1(LARGEST_PART):  # read would lose, with the cut, all that it has so far
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def _parsed(line: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line, parse_constant=_no_number)
    return record


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no time")


def result_files() -> list[Path]:
    """All committed record files."""
    return sorted(RESULTS.glob("*/*.jsonl.gz"))
