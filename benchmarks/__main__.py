"""``python -m benchmarks run NAME…``, ``run block_mask_build``, ``run block_mask_decode``; ``report, show, tune``.

What is wrong with a file or an option is said in a sentence.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import jsonschema
import rich
import torch
from rich.progress import Progress

from attn_mods import tuning
from attn_mods.registry import UnknownEntryError
from benchmarks import block_mask_build, card_report, device_build, device_decode, record, report
from benchmarks.attention import command as attention
from benchmarks.attention import report as attention_report
from benchmarks.attention import tune as attention_tune
from benchmarks.attention.cases import PASSES
from benchmarks.attention.cases import SUITES as ATTENTION_SUITES
from benchmarks.environment import code_version, environment
from benchmarks.measured_masks import MASKS
from benchmarks.methods import METHODS

T = TypeVar("T")
READ = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITTEN = click.Path(dir_okay=False, writable=True, path_type=Path)


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
BLOCK_MASKS = ("block_mask_build", "block_mask_decode")
CARD_SUITE = "gpu"
ATTENTION_BUDGET = 540.0
"""Seconds after which a run of attention begins no recipe and shape."""

CARD_SECONDS, CARD_BUDGET = 1.0, 220.0
"""For how long a cell is sampled on a card, and after how many seconds a run there begins no cell."""

MASK_NAMES = list(dict.fromkeys([*block_mask_build.RULES, *MASKS]))
METHOD_NAMES = list(dict.fromkeys([*block_mask_build.BACKENDS, *METHODS]))


@dataclass(frozen=True)
class Choice:
    """What the command line asks for; an empty tuple is everything."""

    what: str
    suite: str
    masks: tuple[str, ...]
    lengths: tuple[int, ...]
    methods: tuple[str, ...]
    budget: float
    device: str

    @property
    def command(self) -> str:
        """The command that measures the same."""
        options = [f"--mask {mask}" for mask in self.masks]
        options += [f"--length {length}" for length in self.lengths]
        options += [f"--method {method}" for method in self.methods]
        if self.suite == CARD_SUITE:
            options += [f"--budget {self.budget:g}"] * (self.budget != CARD_BUDGET)
            options += [f"--device {self.device}"] * (self.device != "cuda")
        return " ".join(["python -m benchmarks run", self.what, "--suite", self.suite, *options])


@click.group()
def main() -> None:
    """Measure the catalogue and print what was measured."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every entry of the catalogue.")
@click.option(
    "--suite",
    type=click.Choice(list(dict.fromkeys([*SUITES, *ATTENTION_SUITES["cpu"], *ATTENTION_SUITES["cuda"], CARD_SUITE]))),
    default="quick",
    show_default=True,
    help="Which lengths and cases. Of block masks alone: tiny tries the harness out, gpu measures on a card.",
)
@click.option("--backends", help="Only these ways to compute attention, separated by commas.")
@click.option("--mask", "masks", multiple=True, type=click.Choice(MASK_NAMES), help="Only this block mask; repeatable.")
@click.option("--case", "cases", multiple=True, help="In place of the suite's; repeatable.")
@click.option("--length", "lengths", multiple=True, type=click.IntRange(1), help="In place of the suite's; repeatable.")
@click.option("--pass", "passes", multiple=True, type=click.Choice(PASSES), help="Of attention; repeatable.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHOD_NAMES), help="Of block masks; repeatable.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="How many compile at a time, until the budget's end.")
@click.option("--budget", type=float, help="Seconds after which nothing more is begun.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Where to measure; a card if there is one.")
@click.option("--commit", help="What to record where the code lies without its git folder.")
@click.option("--out", type=WRITTEN, help="File to write as it goes; .jsonl or .jsonl.gz.")
def run(
    names: tuple[str, ...],
    everything: bool,
    backends: str | None,
    cases: tuple[str, ...],
    passes: tuple[str, ...],
    jobs: int,
    out: Path | None,
    **options: Any,
) -> None:
    """Measure attention of the entries NAMES in every way that computes them, each checked before it is timed.

    A file that --out names is taken up where it ended. With block_mask_build or block_mask_decode as the only name,
    how long it takes to build BlockMasks, which goes to a new file.
    """
    if bool(names) == everything:
        raise click.UsageError("name what to measure, or give --all; attn-mods list shows the entries")
    of_block_masks = [name for name in BLOCK_MASKS if name in names]
    if of_block_masks:
        if len(names) > 1 or backends is not None or cases or passes or jobs > 1:
            raise click.UsageError(f"{of_block_masks[0]} is measured by itself, with --mask, --length and --method")
        if out is not None and out.exists() and out.stat().st_size:
            raise click.UsageError(f"{out} holds something already; name a new file for {of_block_masks[0]}")
        _run_block_masks(names[0], out, **options)
        return
    if options["masks"] or options["methods"]:
        raise click.UsageError(f"--mask and --method are for {' and '.join(BLOCK_MASKS)}")
    if backends is not None and not backends.strip(", "):
        raise click.UsageError("--backends names none; leave it out for all")
    choice = attention.Choice(
        _each_once(names),
        options["suite"],
        _each_once(filter(None, backends.split(","))) if backends else (),
        ATTENTION_BUDGET if options["budget"] is None else options["budget"],
        options["device"] or ("cuda" if torch.cuda.is_available() else "cpu"),
        _each_once(cases),
        _each_once(options["lengths"]),
        jobs,
        tuple(what for what in PASSES if what in (passes or PASSES)),
    )
    attention.run(choice, _header(choice.command, options["commit"], choice.device), out)


def _each_once(asked: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(asked))


def _header(command: str, commit: str | None, device: str) -> dict[str, Any]:
    """The record of a run itself."""
    return {
        "record": "environment",
        "schema": 1,
        "run_id": uuid.uuid4().hex[:12],
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "code": code_version(commit),
        "environment": environment(device),
    }


def _run_block_masks(what: str, out: Path | None, commit: str | None, **options: Any) -> None:
    """One record a cell: on a CPU each in a process of its own, on a card all in one."""
    if options["suite"] != CARD_SUITE and (options["device"] == "cuda" or options["budget"] is not None):
        raise click.UsageError(f"--device cuda and --budget are for --suite {CARD_SUITE}; add it, or leave them out")
    options["budget"] = CARD_BUDGET if options["budget"] is None else options["budget"]
    choice = Choice(what, **options | {"device": options["device"] or "cuda"})
    header = _header(choice.command, commit, choice.device)
    run_id = header["run_id"]
    records: list[dict[str, Any]] = [header]
    with Progress() as progress:
        rows = _measured(choice, progress)
        if out is not None:
            record.write(out, records)
        for row in rows:
            records.append(row | {"run_id": run_id})
            if out is not None:
                record.append(out, records[-1])
    if out is not None:
        record.write(out, records)  # in one piece a gzipped file is smaller
        rich.print(f"{len(records)} records written to {out}")
    if choice.suite == CARD_SUITE:
        click.echo(card_report.page([records]), nl=False)
    else:
        rich.print(report.block_mask_table(records))


def _measured(choice: Choice, progress: Progress) -> Iterator[dict[str, Any]]:
    """The records of all cells, one after the other; a bar shows which one is on."""
    if choice.suite != CARD_SUITE:
        return _measured_in_processes(choice, progress)
    if choice.device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("suite gpu needs a card, and torch finds none; --device cpu tries the suite out")
    masks = choice.masks or tuple(MASKS)
    if choice.what == "block_mask_decode":
        if choice.methods:
            raise click.UsageError("block_mask_decode measures attn_mods alone; leave --method out")
        steps = device_decode.cells(masks, choice.lengths or device_decode.LENGTHS)
        return device_decode.records(_announced(steps, progress), choice.device)
    todo = device_build.cells(masks, choice.lengths or device_build.LENGTHS, choice.methods or tuple(METHODS))
    run = device_build.Run(choice.device, CARD_SECONDS, choice.budget)
    return run.records(_announced(todo, progress))


def _measured_in_processes(choice: Choice, progress: Progress) -> Iterator[dict[str, Any]]:
    if choice.what != "block_mask_build":
        raise click.UsageError(f"{choice.what} is measured on a card: add --suite gpu")
    if choice.suite not in SUITES:
        raise click.UsageError(f"suite {choice.suite} is not for {choice.what}; use {', '.join([*SUITES, CARD_SUITE])}")
    plan = SUITES[choice.suite]
    todo = [
        cell
        for cell in block_mask_build.cells(choice.lengths or plan.lengths)
        if cell.recipe in (choice.masks or MASK_NAMES) and cell.backend in (choice.methods or METHOD_NAMES)
    ]
    return (_in_own_process(cell, plan.seconds) for cell in _announced(todo, progress))


def _announced(todo: Sequence[T], progress: Progress) -> Iterator[T]:
    task = progress.add_task("", total=len(todo))
    for cell in todo:
        progress.update(task, description=" ".join(map(str, vars(cell).values())))
        yield cell
        progress.advance(task)


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
@click.argument("paths", nargs=-1, type=READ)
def report_command(paths: tuple[Path, ...]) -> None:
    """Print what was measured, in PATHS or in all committed records: tables for processors, Markdown for cards."""
    on_cards = []
    for path in paths or record.result_files():
        records = _records(path)
        if any(row["record"] == "attention" for row in records):
            click.echo(attention_report.page(records), nl=False)
        elif records[0]["environment"]["card"] is None:
            rich.print(report.block_mask_table(records), f"{path.parent.name}/{path.name}\n")
        else:
            on_cards.append(records)
    if on_cards:
        click.echo(card_report.page(on_cards), nl=False)


@main.command()
@click.argument("paths", nargs=-1, required=True, type=READ)
@click.option("--against", type=READ, help="Records of a later run to judge it by, in place of writing it.")
@click.option("--out", type=WRITTEN, help="File to write; attn_mods/tuning/<card>.json if left out.")
def tune(paths: tuple[Path, ...], against: Path | None, out: Path | None) -> None:
    """Make the table that "auto" goes by from the records in PATHS, all of one card."""
    if against is not None and out is not None:
        raise click.UsageError("--against writes no table; leave --out out")
    try:
        table = attention_tune.table_of(row for path in paths for row in _records(path))
        later = [] if against is None else _records(against)
        if any(row["environment"]["card"] != table.card for row in later if row["record"] == "environment"):
            raise click.UsageError(
                f"{against}: the later run must be on {table.card}, as the table is; name one that is"
            )
        regrets = sorted(attention_tune.regrets(table, later), key=lambda regret: -regret.share)
    except (ValueError, UnknownEntryError) as error:
        raise click.UsageError(str(error.args[0])) from None
    if against is None:
        target = out or tuning.FOLDER / tuning.file_name(table.card)
        tuning.write(target, table)
        click.echo(f"{len(table.rows)} measurements on {table.card} written to {target}")
        return
    for regret in regrets:
        where = "in the table" if regret.is_in_table else "not in the table"
        name = f"{regret.group.name}, {regret.what}"
        slower = f"{regret.share:.1%}" if regret.problem is None else regret.problem
        click.echo(f"{slower:>6} {name}: {regret.chosen} for {regret.fastest} ({where})")


@main.command()
@click.argument("path", type=READ)
def show(path: Path) -> None:
    """Print every record of a file as JSON."""
    for row in _records(path):
        rich.print_json(data=row)


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, which begin with that of a run.

    Raises:
        click.UsageError: It has none, or is no file of records.
    """
    try:
        records = list(record.read(path))
    except jsonschema.ValidationError as error:
        raise click.UsageError(
            f"{path}: a record is not of the form in benchmarks/schema.json: {error.message}; name another file"
        ) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not records or records[0]["record"] != "environment":
        raise click.UsageError(f"{path}: it does not begin with the record of a run; name a file that run --out wrote")
    return records


if __name__ == "__main__":
    main()
