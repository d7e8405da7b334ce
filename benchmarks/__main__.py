"""``python -m benchmarks run block_mask_build``, ``report``, ``show``."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import rich
from rich.progress import Progress

from benchmarks import block_mask_build, record, report
from benchmarks.environment import code_version, environment


@dataclass(frozen=True)
class Suite:
    """Which lengths, and for how long each cell is sampled."""

    lengths: tuple[int, ...]
    seconds: float


SUITES = {
    "tiny": Suite((256,), seconds=0.05),
    "quick": Suite((4096,), seconds=2.0),
    "standard": Suite((4096, 16384, 32768, 131072), seconds=2.0),
}


@click.group()
def main() -> None:
    """Measure the catalogue and print what was measured."""


@main.command()
@click.argument("what", type=click.Choice(["block_mask_build"]))
@click.option(
    "--suite",
    type=click.Choice(list(SUITES)),
    default="quick",
    show_default=True,
    help="Which lengths; tiny tries the harness out.",
)
@click.option("--out", type=click.Path(path_type=Path), help="File to write; .jsonl or .jsonl.gz.")
def run(what: str, suite: str, out: Path | None) -> None:
    """Measure WHAT, each cell in a process of its own, and write one record a cell."""
    run_id = uuid.uuid4().hex[:12]
    header = {
        "record": "environment",
        "schema": 1,
        "run_id": run_id,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks run {what} --suite {suite}",
        "code": code_version(),
        "environment": environment(),
    }
    records: list[dict[str, Any]] = [header]
    todo = list(block_mask_build.cells(SUITES[suite].lengths))
    with Progress() as progress:
        task = progress.add_task(what, total=len(todo))
        for cell in todo:
            progress.update(task, description=f"{cell.recipe} {cell.length:,} {cell.backend}")
            records.append(_in_own_process(cell, SUITES[suite].seconds) | {"run_id": run_id})
            progress.advance(task)
    if out is not None:
        record.write(out, records)
        rich.print(f"{len(records)} records written to {out}")
    rich.print(report.block_mask_table(records))


def _in_own_process(cell: block_mask_build.Cell, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "cell", cell.recipe, str(cell.length), cell.backend, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return row
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return block_mask_build.describe(cell) | {"status": "failed", "message": message}


@main.command(hidden=True)
@click.argument("recipe")
@click.argument("length", type=int)
@click.argument("backend")
@click.argument("seconds", type=float)
def cell(recipe: str, length: int, backend: str, seconds: float) -> None:
    """Measure one cell and print its record."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    click.echo(json.dumps(block_mask_build.run(block_mask_build.Cell(recipe, length, backend), free, seconds)))


@main.command(name="report")
def report_command() -> None:
    """Print the tables of all committed records."""
    for path in record.result_files():
        rich.print(report.block_mask_table(record.read(path)), f"{path.parent.name}/{path.name}\n")


@main.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def show(path: Path) -> None:
    """Print every record of a file as JSON."""
    for row in record.read(path):
        rich.print_json(data=row)


if __name__ == "__main__":
    main()
