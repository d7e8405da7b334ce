"""verify(): does an entry do what it says, here and now? The tests and the benchmark gate run the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import registry
from attn_mods.dispatch import attention, explain
from attn_mods.entry import Case, Entry
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask
from attn_mods.oracle import reference
from attn_mods.recipe import Recipe
from attn_mods.score import Score

Outcome = Literal["ok", "wrong", "unsupported"]
"""How a check ended. "unsupported" is a backend that says it does not compute this recipe."""

LENGTHS = ((128, 128), (200, 200))
BLOCK_SIZES = ((128, 128), (32, 64))
HEADS, KEY_HEADS, BATCH, HEAD_DIM = 4, 2, 2, 32


@dataclass(frozen=True)
class Row:
    """One check of one case."""

    case: str
    check: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """What verify() found for one entry."""

    name: str
    device: str
    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing was wrong."""
        return any(row.outcome == "ok" for row in self.rows) and all(row.outcome != "wrong" for row in self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.name} on {self.device}", title_justify="left")
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
) -> Report:
    """Check an entry: its picture, its rule against its dense form, its BlockMask, and every backend's output.

    Args:
        name: Name of a mask or score.
        device: Where to compute.
        backends: Names of the backends to check; None = all that support the recipe.
        on_row: Called after every check, for progress.

    Returns:
        Report with one row a check; ``report.ok`` says whether all is right.

    Raises:
        KeyError: No such entry.
    """
    entry = registry.info(name)
    report = Report(name, device)
    for row in _rows(entry, device, backends):
        report.rows.append(row)
        if on_row is not None:
            on_row(row)
    return report


def _rows(entry: Entry, device: str, backends: Sequence[str] | None) -> Iterator[Row]:
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
    yield from _backend_rows(entry, device, backends)


def _backend_rows(entry: Entry, device: str, backends: Sequence[str] | None) -> Iterator[Row]:
    case = entry.cases["tiny"]
    q_len, kv_len = (case.lengths or LENGTHS)[-1]
    part = case.make(q_len, kv_len, device)
    q, k, v = inputs(part, q_len, kv_len, torch.float32, device)
    offset = None if q_len == kv_len else 0
    rows = explain(q, k, v, part, q_offset=offset).rows
    unknown = set(backends or ()) - {row.backend for row in rows}
    if unknown:
        known = ", ".join(row.backend for row in rows)
        raise ValueError(f"{entry.name}: there is no backend {', '.join(sorted(unknown))}; use some of {known}")
    for row in rows:
        if backends is not None and row.backend not in backends:
            continue
        if row.reason is not None:
            yield Row("tiny", row.backend, "unsupported", str(row.reason))
        else:
            yield check_output("tiny", row.backend, part, q, k, v, offset)


def picture_of(entry: Entry) -> Tensor:
    """The hand-drawn picture as a bool matrix."""
    lines = entry.picture.split()
    return torch.tensor([[mark == "x" for mark in line] for line in lines])


def check_picture(entry: Entry, device: str = "cpu") -> Row:
    """The hand-drawn picture equals the dense form of the case "tiny" at batch 0 and head 0."""
    picture = picture_of(entry)
    q_len, kv_len = picture.shape
    dense = entry.cases["tiny"].make(q_len, kv_len, device).dense(q_len, kv_len)
    while dense.ndim > 2:
        dense = dense[0]
    different = (dense.cpu() != picture).nonzero().tolist()
    detail = f"differs at (i, j) = {tuple(different[0])}" if different else ""
    return Row(f"tiny {q_len}x{kv_len}", "picture", "wrong" if different else "ok", detail)


def check_mask(where: str, mask: Mask, q_len: int, kv_len: int) -> Iterator[Row]:
    """The rule equals the dense form, and so do the blocks at several block sizes."""
    placed = mask.place(q_len, kv_len, None if q_len == kv_len else 0)
    dense = _four_dimensional(placed.dense(q_len, kv_len), placed)
    ruled = rule_matrix(placed, q_len, kv_len, dense.device)
    yield _compare(where, "rule = dense", ruled, dense)
    for block_size in BLOCK_SIZES:
        block_mask = placed.placed_block_mask(q_len, kv_len, device=dense.device, block_size=block_size)
        check = f"blocks of {block_size[0]}x{block_size[1]} = dense"
        try:
            expanded = expand(block_mask, ruled)
        except ValueError as error:
            yield Row(where, check, "wrong", str(error))
        else:
            yield _compare(where, check, expanded, dense)


def check_score(where: str, score: Score, q_len: int, kv_len: int, device: str) -> Row:
    """The rule equals the dense form on random scores, relative to the largest."""
    batch, heads = score.batch_and_heads()
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, heads, q_len, kv_len, generator=generator, dtype=torch.float64).to(device)
    i, j = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
    with torch.no_grad():
        dense = score.dense(scores, i, j)
        b, h = torch.arange(batch, device=device), torch.arange(heads, device=device)
        ruled = evaluate_everywhere(score.score_mod(), b, h, i, j, scores)
    error = _relative_error(ruled, dense)
    return Row(where, "rule = dense", "ok" if error < 1e-5 else "wrong", f"largest relative difference {error:.1e}")


def check_output(
    where: str, backend: str, part: Recipe | Mask | Score, q: Tensor, k: Tensor, v: Tensor, q_offset: int | None = None
) -> Row:
    """The backend's output against float64, by the two-errors rule: at most twice the error of dense attention."""
    with torch.no_grad():
        expected = reference(q, k, v, part, q_offset=q_offset)
        plain = attention(q, k, v, part, q_offset=q_offset, backend="eager")
        out = attention(q, k, v, part, q_offset=q_offset, backend=backend)
    error, allowed = _relative_error(out, expected), _allowed(_relative_error(plain, expected), q.dtype)
    detail = f"relative error {error:.1e}, at most {allowed:.1e}"
    return Row(where, f"{backend} = float64", "ok" if error <= allowed else "wrong", detail)


def _allowed(plain_error: float, dtype: torch.dtype) -> float:
    return max(2 * plain_error, 8 * torch.finfo(dtype).eps)


def inputs(
    part: Recipe | Mask | Score, q_len: int, kv_len: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k and v with as many batches and heads as the parameters ask for, grouped query heads otherwise."""
    batch, heads = Recipe.of(part).batch_and_heads()
    batch, heads = max(batch, BATCH) if batch == 1 else batch, HEADS if heads == 1 else heads
    key_heads = KEY_HEADS if heads % KEY_HEADS == 0 else heads
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, heads, q_len), (batch, key_heads, kv_len), (batch, key_heads, kv_len))
    q, k, v = (torch.randn(*shape, HEAD_DIM, generator=generator).to(device, dtype) for shape in shapes)
    return q, k, v


def rule_matrix(mask: Mask, q_len: int, kv_len: int, device: torch.device) -> Tensor:
    """The rule at every position, bool [B, H, q_len, kv_len]."""
    batch, heads = mask.batch_and_heads()
    axes = (torch.arange(n, device=device) for n in (batch, heads, q_len, kv_len))
    return evaluate_everywhere(mask.mask_mod(), *axes)


def expand(block_mask: BlockMask, ruled: Tensor) -> Tensor:
    """What a kernel shows: pairs of full blocks, and of partial blocks where the rule holds; bool like ``ruled``.

    Raises:
        ValueError: A list is out of range, not ascending, or disagrees with its transpose.
    """
    partial = _block_matrix(block_mask.kv_num_blocks, block_mask.kv_indices, "kv_indices")
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _block_matrix(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, "full_kv_indices")
    by_columns = [(block_mask.q_num_blocks, block_mask.q_indices, "q_indices", partial)]
    if block_mask.full_q_num_blocks is not None:
        by_columns.append((block_mask.full_q_num_blocks, block_mask.full_q_indices, "full_q_indices", full))
    for counts, indices, label, rows in by_columns:
        if not torch.equal(_block_matrix(counts, indices, label).transpose(-2, -1), rows):
            raise ValueError(f"{label} is not the transpose of the lists by rows")
    q_len, kv_len = ruled.shape[-2:]
    return (_to_tokens(partial, block_mask, q_len, kv_len) & ruled) | _to_tokens(full, block_mask, q_len, kv_len)


def _block_matrix(counts: Tensor | None, indices: Tensor | None, label: str) -> Tensor:
    if counts is None or indices is None:
        raise ValueError(f"{label} is missing")
    columns = indices.shape[-1]
    valid = torch.arange(columns, device=indices.device) < counts[..., None]
    listed = torch.where(valid, indices, columns).long()
    if bool((valid & ((indices < 0) | (indices >= columns))).any()):
        raise ValueError(f"{label} names a block that does not exist")
    if bool((valid[..., 1:] & (listed.diff(dim=-1) <= 0)).any()):
        raise ValueError(f"{label} is not ascending")
    blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return blocks.scatter_(-1, listed, True)[..., :columns]


def _to_tokens(blocks: Tensor, block_mask: BlockMask, q_len: int, kv_len: int) -> Tensor:
    q_size, kv_size = block_mask.BLOCK_SIZE
    return blocks.repeat_interleave(q_size, -2).repeat_interleave(kv_size, -1)[..., :q_len, :kv_len]


def _four_dimensional(dense: Tensor, mask: Mask) -> Tensor:
    while dense.ndim < 4:
        dense = dense[None]
    return dense.expand(*mask.batch_and_heads(), *dense.shape[-2:])


def _compare(where: str, check: str, got: Tensor, expected: Tensor) -> Row:
    if got.shape != expected.shape:
        return Row(where, check, "wrong", f"shapes {tuple(got.shape)} and {tuple(expected.shape)}")
    different = (got != expected).nonzero().tolist()
    detail = f"differs at (b, h, i, j) = {tuple(different[0])}" if different else ""
    return Row(where, check, "wrong" if different else "ok", detail)


def _relative_error(got: Tensor, expected: Tensor) -> float:
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    size = float(expected.double().norm())
    return float((got.double() - expected.double()).norm()) / (size or 1.0)


def case_of(entry: Entry, name: str) -> Case:
    """The case of that name.

    Raises:
        ValueError: The entry has no such case.
    """
    if name not in entry.cases:
        raise ValueError(f"{entry.name}: there is no case {name!r}; use one of {', '.join(entry.cases)}")
    return entry.cases[name]
