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
    lines = []
    for record in records:
        validate(record)
        lines.append(json.dumps(record, separators=(",", ":"), sort_keys=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    # a fixed time stamp keeps equal records equal as files
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return len(lines)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, validated."""
    raw = path.read_bytes()
    for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().splitlines():
        record = json.loads(line)
        validate(record)
        yield record


def result_files() -> list[Path]:
    """All committed record files."""
    return sorted(RESULTS.glob("*/*.jsonl.gz"))
