"""verify(): does an entry do what it says, here and now? The tests and the benchmark gate run the same checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from attn_mods import backends as all_backends
from attn_mods import checks, registry
from attn_mods.backend_checks import Problem, check_gradients, check_lse, check_output
from attn_mods.dispatch import explain
from attn_mods.entry import Case, Entry
from attn_mods.entry_checks import Row, check_mask, check_picture, check_score
from attn_mods.mask import Mask

LENGTHS = ((128, 128), (200, 200))

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Rules compute in float32, so that float64 inputs would be held to more than they are made for."""

COMPILED = ("flex", "flex_flash")
"""Backends that compile for seconds: they are checked on the case "tiny" alone."""


@dataclass(frozen=True)
class Report:
    """What verify() found for one entry."""

    name: str
    device: str
    rows: list[Row] = field(default_factory=list)
    dtype: torch.dtype = torch.float32

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing was wrong."""
        return any(row.outcome == "ok" for row in self.rows) and all(row.outcome != "wrong" for row in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        dtype = str(self.dtype).removeprefix("torch.")
        table = Table(title=f"{self.name} on {self.device}, {dtype}", title_justify="left")
        for column in ("case", "check", "outcome", "detail"):
            table.add_column(column)
        for row in self.rows:
            style = {"ok": "green", "wrong": "bold red", "unsupported": "dim"}[row.outcome]
            table.add_row(row.case, row.check, row.outcome, row.detail, style=style)
        yield table

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def verify(
    name: str,
    device: str = "cpu",
    backends: Sequence[str] | None = None,
    on_row: Callable[[Row], None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Report:
    """Check an entry: its picture, its rule against its dense form, its BlockMask, and every backend.

    A backend's output is checked on every case (on the case "tiny" alone if it compiles), its lse and its gradients,
    where it claims to compute them, on the case "tiny"; all against float64.

    Args:
        name: Name of a mask or score.
        device: Where to compute.
        backends: Names of the backends to check; None = all that support the recipe.
        on_row: Called after every check, for progress.
        dtype: Of q, k and v. Flash kernels compute in float16 and bfloat16 alone.

    Returns:
        Report with one row a check; ``report.ok`` says whether all is right.

    Raises:
        KeyError: No such entry.
        ValueError: No such backend, a device that cannot be used here.
        TypeError: A name that is no text, backends that are no list of names, something that is no device, a dtype that
            attention is not computed in.
    """
    entry = registry.info(name)
    checks.usable_device("verify", device)
    device = str(device)
    known = [backend.name for backend in all_backends.ALL]
    if backends is not None and not _are_names(backends):
        remedy = f"pass a list of some of {', '.join(known)}"
        checks.fail("verify", "backends must be a list of names", checks.describe(backends), remedy, TypeError)
    if dtype not in DTYPES.values():
        names = ", ".join(map(str, DTYPES.values()))
        checks.fail("verify", f"dtype must be one of {names}", checks.describe(dtype), "pass one of them", TypeError)
    unknown = sorted(set(backends or ()) - set(known))
    if unknown:
        raise ValueError(f"{name}: there is no backend {', '.join(unknown)}; use some of {', '.join(known)}")
    report = Report(name, device, dtype=dtype)
    for row in _rows(entry, device, dtype, known if backends is None else backends):
        report.rows.append(row)
        if on_row is not None:
            on_row(row)
    return report


def _are_names(value: object) -> bool:
    return isinstance(value, (list, tuple, set)) and all(isinstance(each, str) for each in value)


def _rows(entry: Entry, device: str, dtype: torch.dtype, backends: Sequence[str]) -> Iterator[Row]:
    if entry.picture:
        yield check_picture(entry, device)
    for case_name, case in entry.cases.items():
        for q_len, kv_len in case.lengths or LENGTHS:
            part = case.make(q_len, kv_len, device)
            where = f"{case_name} {q_len}x{kv_len}"
            if isinstance(part, Mask):
                yield from check_mask(where, part, q_len, kv_len)
            else:
                yield check_score(where, part, q_len, kv_len, device)
    for case_name, case in entry.cases.items():
        q_len, kv_len = (case.lengths or LENGTHS)[-1]
        problem = Problem.of(case.make(q_len, kv_len, device), q_len, kv_len, dtype, device)
        yield from _backend_rows(case_name, problem, backends)


def _backend_rows(case_name: str, problem: Problem, backends: Sequence[str]) -> Iterator[Row]:
    is_tiny = case_name == "tiny"
    refused = _refused(problem)
    for backend in backends:
        if not is_tiny and backend in COMPILED:
            continue
        if refused[backend] is None:
            yield check_output(case_name, backend, problem)
        else:
            yield Row(case_name, backend, "unsupported", str(refused[backend]))
    if is_tiny:
        yield from _claims(case_name, problem, [name for name in backends if refused[name] is None])


def _claims(case_name: str, problem: Problem, backends: Sequence[str]) -> Iterator[Row]:
    """What backends may compute besides the output."""
    without_lse, without_gradients = _refused(problem, lse=True), _refused(problem, inputs=True)
    without_parameters = _refused(problem, inputs=True, parameters=True)
    for backend in backends:
        if without_lse[backend] is None:
            yield check_lse(case_name, backend, problem)
        else:
            yield Row(case_name, f"{backend} lse", "unsupported", str(without_lse[backend]))
        if without_gradients[backend] is None:
            parameters = without_parameters[backend] is None
            yield check_gradients(case_name, backend, problem, parameters)
        else:
            yield Row(case_name, f"{backend} gradients", "unsupported", str(without_gradients[backend]))


def _refused(
    problem: Problem, lse: bool = False, inputs: bool = False, parameters: bool = False
) -> dict[str, str | None]:
    """By backend why it does not compute the problem with this asked for besides; None = it does."""
    q, k, v = (tensor.detach().requires_grad_(inputs) for tensor in (problem.q, problem.k, problem.v))
    recipe = problem.recipe
    if parameters:
        tensors = recipe.tensors()
        recipe = recipe.with_tensors({name: tensors[name].detach().requires_grad_() for name in recipe.learnable()})
    with torch.set_grad_enabled(inputs or parameters):
        rows = explain(q, k, v, recipe, q_offset=problem.q_offset, return_lse=lse).rows
    return {row.backend: None if row.reason is None else str(row.reason) for row in rows}


def case_of(entry: Entry, name: str) -> Case:
    """The case of that name.

    Raises:
        ValueError: The entry has no such case.
    """
    if name not in entry.cases:
        raise ValueError(f"{entry.name}: there is no case {name!r}; use one of {', '.join(entry.cases)}")
    return entry.cases[name]
