"""Records: JSON Lines, one measured cell a line, all samples kept, the environment once per run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = Path(__file__).with_name("schema.json")
RESULTS = Path(__file__).with_name("results")


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
    return json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n"


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
        parsed = [json.loads(line) for line in text.splitlines()]
    except (EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole file of records ({error}); if its writing was cut, remove it and measure again"
        ) from error
    for record in parsed:
        validate(record)
        yield record


def result_files() -> list[Path]:
    """All committed record files."""
    return sorted(RESULTS.glob("*/*.jsonl.gz"))
