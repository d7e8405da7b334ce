"""``python -m benchmarks run NAME…``: measure entries, take up a file that was begun, show how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import jsonschema
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import attn_mods as am
from attn_mods.entry import Kind
from attn_mods.registry import UnknownEntryError
from benchmarks import record
from benchmarks.attention import measure, report
from benchmarks.attention.cases import PASSES, SUITES, Group, groups, is_of_this_file
from benchmarks.attention.measure import Limits
from benchmarks.attention.ways import DEFAULT, WAYS
from benchmarks.attention.workers import Workers

KINDS: tuple[Kind, ...] = ("mask", "score")
SAME_PLACE = ("card", "processor", "torch")
"""What of its environment a run has in common with one that it goes on with."""


@dataclass(frozen=True)
class Choice:
    """What the command line asks for.

    Attributes:
        names: Entries; every one of the catalogue if empty.
        suite: Name of the suite.
        ways: Ways to compute; every one if empty.
        budget: Seconds after which no group is begun; with several jobs, one that is not compiled by then is given up.
        device: "cuda" or "cpu".
        cases: Cases in place of the suite's, of each entry those that it has; the suite's own if empty.
        lengths: Numbers of tokens in place of the suite's; the suite's own if empty.
        jobs: Groups that are compiled at a time, each in a process of its own; 1 is one after the other, in this one.
        passes: Passes that are measured.
    """

    names: tuple[str, ...]
    suite: str
    ways: tuple[str, ...]
    budget: float
    device: str
    cases: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    jobs: int = 1
    passes: tuple[str, ...] = PASSES

    def __post_init__(self) -> None:
        """Raise click.UsageError for what is not there, with near misses."""
        if not self.budget >= 0:
            raise click.UsageError(f"--budget is a number of seconds, got {self.budget:g}; leave it out for the usual")
        suites = SUITES[self.device]
        if self.suite not in suites:
            raise click.UsageError(f"suite {self.suite} is not for attention on {self.device}; use {', '.join(suites)}")
        for name in self.names:
            try:
                am.info(name)
            except UnknownEntryError as error:
                raise click.UsageError(str(error.args[0])) from None
        names = self.names or _every_entry()
        for case in self.cases:
            if not any(case in am.info(name).cases for name in names):
                known = ", ".join(dict.fromkeys(each for name in names for each in am.info(name).cases))
                where = ", ".join(self.names) or "any entry"
                raise click.UsageError(f"there is no case {case} of {where}; there are {known}")
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown:
            raise click.UsageError(f"there is no backend {', '.join(unknown)}; use some of {', '.join(WAYS)}")
        shapes = suites[self.suite].shapes
        if shapes and self.lengths and not any(shape.kv_len in self.lengths for shape in shapes):
            lengths = ", ".join(map(str, self.lengths))
            raise click.UsageError(f"suite {self.suite} has nothing of {lengths} tokens; leave --length out for all")

    @property
    def command(self) -> str:
        """The command that measures the same."""
        options = [f"--suite {self.suite}"]
        options += [f"--backends {','.join(self.ways)}"] if self.ways else []
        options += [f"--case {case}" for case in self.cases]
        options += [f"--length {length}" for length in self.lengths]
        options += [f"--pass {what}" for what in self.passes if self.passes != PASSES]
        options += [f"--jobs {self.jobs}"] if self.jobs > 1 else []
        options += ["--device cpu"] if self.device == "cpu" and torch.cuda.is_available() else []
        return " ".join(["python -m benchmarks run", *(self.names or ("--all",)), *options])

    @property
    def way_names(self) -> tuple[str, ...]:
        """The ways that are measured."""
        return self.ways or DEFAULT

    def groups(self) -> list[Group]:
        """All groups asked for."""
        names = self.names or _every_entry()
        suite = SUITES[self.device][self.suite]
        if suite.shapes and self.lengths:
            shapes = tuple(shape for shape in suite.shapes if shape.kv_len in self.lengths)
            suite = replace(suite, shapes=shapes)
        cases, lengths = self.cases or suite.cases, self.lengths or suite.lengths
        return groups(names, replace(suite, cases=cases, lengths=lengths))


def _of_fixed_lengths(groups: Sequence[Group]) -> list[str]:
    """The entries whose parameters are made for lengths of their own."""
    return sorted({each.entry for each in groups if am.info(each.entry).cases[each.case].lengths is not None})


def _every_entry() -> tuple[str, ...]:
    return tuple(name for kind in KINDS for name in am.names(kind=kind))


def run(choice: Choice, header: dict[str, Any], out: Path | None) -> None:
    """Measure what is left of a choice, write each record as it is made, and print the tables.

    Args:
        choice: What to measure.
        header: The environment record of this run.
        out: File to write to. What an earlier run on it measured whole is not measured again.

    Raises:
        click.UsageError: There is no such device, or the file is not one to go on with.
    """
    if choice.device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("torch finds no card; --device cpu measures without one")
    before = _taken_up(out, header) if out is not None and out.exists() else []
    of_this_file = (row for row in before if row["record"] == "attention" and is_of_this_file(row))
    done = measure.whole_groups(of_this_file, choice.way_names, choice.passes)
    wanted = choice.groups()
    left = [group for group in wanted if measure.key_of(group.described()) not in done]
    if choice.lengths and (fixed := _of_fixed_lengths(wanted)):
        click.echo(f"--length does not change {', '.join(fixed)}, whose parameters fix the lengths")
    if done:
        click.echo(f"{out}: {len(done)} groups are measured already, {len(left)} are left")
    records: list[dict[str, Any]] = [header]
    if out is not None and left:
        record.append(out, header)
    for row in _rows(choice, left):
        records.append(row | {"run_id": header["run_id"]})
        if out is not None:
            record.append(out, records[-1])
    if out is not None and left:
        record.write(out, [*before, *records])  # in one piece a gzipped file is smaller
    unmeasured = len(left) - len({measure.key_of(row) for row in records if row["record"] == "attention"})
    if unmeasured:
        again = "the same command takes up the rest" if out else "with --out the same command would take up the rest"
        click.echo(f"{unmeasured} of {len(left)} groups were not measured within {choice.budget:g} s; {again}")
    click.echo(report.page([*before, *records]), nl=False)


def _taken_up(out: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a file that was begun where this run goes on, but for one that was cut.

    Raises:
        click.UsageError: It was begun elsewhere, or is no file of records; it is left as it is.
    """
    try:
        before, is_whole = _kept(out)
    except jsonschema.ValidationError as error:
        raise click.UsageError(f"{out} holds a record of another form: {error.message}; name another file") from None
    except ValueError as error:
        raise click.UsageError(f"{error}; name another file") from None
    if not before and not is_whole:
        raise click.UsageError(f"{out} holds no whole record; name another file, or remove it")
    here = {name: header["environment"][name] for name in SAME_PLACE}
    for row in before:
        there = {name: row["environment"][name] for name in SAME_PLACE} if row["record"] == "environment" else here
        if there != here:
            raise click.UsageError(f"{out} holds times of {there}, and this is {here}; name another file")
    if not is_whole:
        click.echo(f"{out}: its end was cut; {len(before)} whole records are kept")
        record.write(out, before)
    return before


def _kept(out: Path) -> tuple[list[dict[str, Any]], bool]:
    """The whole records of a file, and whether it holds nothing else, so that more can be appended."""
    try:
        before = list(record.read(out))
    except ValueError:
        return list(record.read_to_the_cut(out)), False
    ends_with_a_line = out.suffix == ".gz" or out.read_bytes().endswith(b"\n")
    return before, ends_with_a_line or not before


def _rows(choice: Choice, left: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """The records of all groups that can be begun."""
    columns = (TextColumn("{task.description:<50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    end = time.perf_counter() + choice.budget
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("left:"), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(left))
        if left:
            measure.warm_up(choice.device)
        for dtype in dict.fromkeys(group.shape.dtype for group in left):
            yield measure.ceiling(choice.device, dtype)
        for group, row in _told(choice, left, end):
            progress.update(task, description=group.name, advance=int(row is None))
            if row is not None:
                yield row


def _told(choice: Choice, left: Sequence[Group], end: float) -> Iterator[tuple[Group, dict[str, Any] | None]]:
    """Each record with its group, and None where a group is done."""
    if choice.jobs > 1:
        free = torch.cuda.mem_get_info()[0] if choice.device == "cuda" else math.inf
        workers = Workers(choice.way_names, choice.device, Limits(), choice.jobs, free, choice.passes)
        yield from workers.rows(left, end)
        return
    for group in left:
        if time.perf_counter() >= end:
            return
        for row in measure.rows_of(group, choice.way_names, choice.device, Limits(), passes=choice.passes):
            yield group, row
        yield group, None
