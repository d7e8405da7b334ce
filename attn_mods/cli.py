"""The command line ``attn-mods``: list, show, verify and explain the entries of the catalogue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click
import torch
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attn_mods import presentation, registry
from attn_mods.backends import get as get_backend
from attn_mods.dispatch import explain as explain_backends
from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.recipe import Recipe
from attn_mods.score import Score
from attn_mods.verification import DTYPES as VERIFIED
from attn_mods.verification import Report, case_of
from attn_mods.verification import verify as verify_entry

LENGTH = 4096
DTYPES = VERIFIED | {"float64": torch.float64}


def block_size_of(context: click.Context, option: click.Parameter, value: str) -> tuple[int, int]:
    """``128`` or ``64x128`` as tokens per block, queries by keys."""
    sizes = value.lower().split("x")
    if len(sizes) > 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        message = f"{value!r} is no block size; write 128, or 64x128 for 64 queries by 128 keys"
        raise click.BadParameter(message, context, option)
    return int(sizes[0]), int(sizes[-1])


def device_of(context: click.Context, option: click.Parameter, value: str) -> str:
    """A device that holds tensors here and now."""
    try:
        torch.zeros(1, device=value).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch without CUDA raises AssertionError
        reason = str(error).strip().partition("\n")[0]
        message = f"{value!r} cannot be used here ({reason}); leave it out for the processor"
        raise click.BadParameter(message, context, option) from error
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="attn-mods", prog_name="attn-mods")
def main() -> None:
    """A catalogue of attention masks and scores for PyTorch FlexAttention."""


@main.command("list")
@click.option("--kind", help="Only these: mask, score or model.")
@click.option("--tag", help="Only entries with this tag, for example causal, local or packed.")
def list_entries(kind: Any, tag: str | None) -> None:
    """List the entries of the catalogue."""
    with refusals():
        names = registry.names(kind=kind, tag=tag)
    Console().print(presentation.entry_list([registry.info(name) for name in names]))


@main.command()
@click.argument("name")
@click.option("--case", "case_name", default="bench", show_default=True, help="Which of its parameter sets.")
@click.option("--q-len", type=click.IntRange(1), help=f"Number of queries [default: {LENGTH}, or the case's own].")
@click.option("--kv-len", type=click.IntRange(1), help="Number of keys [default: as many as queries].")
@click.option("--q-offset", type=int, help="Absolute position of the first query, if the lengths differ.")
@click.option("--block-size", callback=block_size_of, default="128", show_default=True, help="128, or 64x128.")
def show(
    name: str,
    case_name: str,
    q_len: int | None,
    kv_len: int | None,
    q_offset: int | None,
    block_size: tuple[int, int],
) -> None:
    """Show one entry: picture, rule, parameters, papers, models, traps, and the blocks it leaves to compute."""
    with refusals():
        entry = registry.info(name)
        part, q_len, kv_len = build_case(entry, case_name, q_len, kv_len)
        content = [presentation.facts(entry)]
        if isinstance(part, Mask):
            content.append(presentation.mask_picture(entry, part, case_name, q_len, kv_len, q_offset, block_size))
        elif isinstance(part, Score):
            content.append(presentation.score_picture(part, case_name))
    presentation.print_for_terminal(Console(), Group(*content))


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--device", callback=device_of, default="cpu", show_default=True, help="Where to compute.")
@click.option("--backend", "backends", multiple=True, help="Only this backend; repeat for several.")
@click.option("--dtype", type=click.Choice(list(VERIFIED)), default="float32", show_default=True, help="Of q, k and v.")
@click.option("--details", is_flag=True, help="Print every check, not only the failed ones.")
def verify(names: tuple[str, ...], device: str, backends: tuple[str, ...], dtype: str, details: bool) -> None:
    """Check entries: picture, rule, dense form, blocks, and every backend's output. All of them without a NAME."""
    with refusals():
        entries = [registry.info(name) for name in names or registry.names()]
        for backend in backends:
            get_backend(backend)
    reports: list[Report] = []
    with progress_bar() as progress:
        task = progress.add_task("verify", total=len(entries))
        for entry in entries:
            progress.update(task, description=f"verify {entry.name}")
            reports.append(verify_entry(entry.name, device, backends or None, dtype=VERIFIED[dtype]))
            progress.advance(task)
        progress.update(task, description="verify")
    console = Console()
    for report in reports:
        if details or not report.ok:
            console.print(report)
    console.print(presentation.verification_summary(reports))
    failed = [report.name for report in reports if not report.ok]
    if failed:
        console.print(f"[bold red]failed:[/] {', '.join(failed)}")
        raise SystemExit(1)


@main.command()
@click.argument("name")
@click.option("--case", "case_name", default="bench", show_default=True, help="Which of its parameter sets.")
@click.option("--batch", type=click.IntRange(1), help="Batch size [default: what the parameters ask for].")
@click.option("--heads", type=click.IntRange(1), help="Query heads [default: what the parameters ask for, else 8].")
@click.option("--kv-heads", type=click.IntRange(1), help="Key and value heads [default: as many as query heads].")
@click.option("--q-len", type=click.IntRange(1), help=f"Number of queries [default: {LENGTH}, or the case's own].")
@click.option("--kv-len", type=click.IntRange(1), help="Number of keys [default: as many as queries].")
@click.option("--q-offset", type=int, help="Absolute position of the first query, if the lengths differ.")
@click.option("--head-dim", type=click.IntRange(1), default=64, show_default=True, help="Size of a head.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--device", callback=device_of, default="cpu", show_default=True, help="Where the tensors are.")
@click.option("--training", is_flag=True, help="Whether gradients are wanted.")
def explain(
    name: str,
    case_name: str,
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    q_len: int | None,
    kv_len: int | None,
    q_offset: int | None,
    head_dim: int,
    dtype: str,
    device: str,
    training: bool,
) -> None:
    """Say which backends would run an entry on tensors of these shapes, and why not the others."""
    with refusals():
        part, q_len, kv_len = build_case(registry.info(name), case_name, q_len, kv_len, device)
        own_batch, own_heads = Recipe.of(part).batch_and_heads()
        batch, heads = batch or own_batch, heads or (own_heads if own_heads > 1 else 8)
        shapes = ((batch, heads, q_len), (batch, kv_heads or heads, kv_len), (batch, kv_heads or heads, kv_len))
        q, k, v = (
            torch.zeros(*shape, head_dim, dtype=DTYPES[dtype], device=device, requires_grad=training)
            for shape in shapes
        )
        explanation = explain_backends(q, k, v, part, q_offset=q_offset)
    Console().print(explanation)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn the package's refusals of user input into one line and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, LookupError, NotImplementedError) as error:
        raise click.UsageError(str(error)) from error


def progress_bar() -> Progress:
    """A progress bar on standard error, so that standard output holds the result alone."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def build_case(
    entry: Entry, case_name: str, q_len: int | None, kv_len: int | None, device: str = "cpu"
) -> tuple[Any, int, int]:
    """The mask, score or recipes of a case, and the lengths it is made for.

    Raises:
        ValueError: No such case, or lengths the case is not defined for.
    """
    case = case_of(entry, case_name)
    if case.lengths is None:
        q_len = q_len or kv_len or LENGTH
        kv_len = kv_len or q_len
    elif q_len is None and kv_len is None:
        q_len, kv_len = max(case.lengths, key=lambda lengths: (lengths[0] == lengths[1], lengths))
    else:
        q_len, kv_len = q_len or kv_len or 0, kv_len or q_len or 0
        if (q_len, kv_len) not in case.lengths:
            fixed = ", ".join(f"--q-len {q} --kv-len {kv}" for q, kv in case.lengths)
            raise ValueError(
                f"{entry.name}: the case {case_name!r} fixes the lengths, got {q_len} x {kv_len}; use {fixed}"
            )
    return case.make(q_len, kv_len, device), q_len, kv_len


if __name__ == "__main__":
    main()
