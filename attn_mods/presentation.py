"""What the command line prints of an entry, a mask, a score and a verification."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from attn_mods import description, drawing
from attn_mods.entry import Entry, Paper
from attn_mods.entry_checks import picture_of
from attn_mods.mask import Mask, Offset
from attn_mods.score import Score
from attn_mods.verification import Report
from attn_mods.work import count_work

OUTCOME_STYLES = {"ok": "green", "wrong": "bold red", "unsupported": "dim"}
AGREES = " = float64"
SCALED_SCORES = (-100.0, -50.0, -10.0, -1.0, 0.0, 1.0, 10.0, 50.0, 100.0)


def entry_list(entries: Sequence[Entry]) -> Table:
    """One line an entry."""
    table = Table(title=f"{len(entries)} entries", title_justify="left")
    table.add_column("name", no_wrap=True, style="bold")
    for column in ("kind", "what it does", "tags"):
        table.add_column(column)
    for entry in entries:
        table.add_row(entry.name, entry.kind, entry.summary, ", ".join(sorted(entry.tags)))
    return table


def facts(entry: Entry) -> Group:
    """What the entry's file says of it."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    meanings = [f"{name}: {_plain(meaning)}" for name, meaning in description.parameters(entry).items()]
    for label, lines in (
        ("rule", [_plain(description.rule(entry))]),
        ("parameters", meanings or ["none"]),
        ("papers", [_citation(paper) for paper in entry.papers]),
        ("models", [f"{model.name} ({model.field})" if model.field else model.name for model in entry.models]),
        ("tags", [", ".join(sorted(entry.tags))]),
        ("cases", [", ".join(entry.cases)]),
        ("traps", [_plain(trap) for trap in entry.traps]),
    ):
        for number, line in enumerate(lines):
            table.add_row(label if number == 0 else "", Text(line))
    title = Text.assemble((entry.title, "bold"), f"  ({entry.kind} ", (entry.name, "cyan"), ")")
    return Group(title, Text(entry.summary), table)


def mask_picture(
    entry: Entry,
    mask: Mask,
    case_name: str,
    q_len: int,
    kv_len: int,
    q_offset: Offset | None,
    block_size: tuple[int, int],
) -> Group:
    """The hand-drawn picture, the mask at the given lengths, and what it leaves to compute."""
    parts: list[Text] = []
    if entry.picture:
        picture = picture_of(entry)
        parts += [_heading("tiny", *picture.shape), Text(drawing.draw_tokens(picture), no_wrap=True)]
    parts.append(_heading(case_name, q_len, kv_len))
    if max(q_len, kv_len) <= drawing.TOKENS_SHOWN:
        visible = mask.place(q_len, kv_len, q_offset).dense(q_len, kv_len).reshape(-1, q_len, kv_len)[0]
        parts.append(Text(drawing.draw_tokens(visible), no_wrap=True))
    else:
        queries, keys = drawing.overview_scale(q_len, kv_len)
        legend = f"one character is {queries} queries x {keys} keys: {drawing.ALL} all, {drawing.SOME} some, "
        parts.append(Text(drawing.draw_overview(mask, q_len, kv_len, q_offset), no_wrap=True))
        parts.append(Text(f"{legend}{drawing.HIDDEN} none visible"))
    work = count_work(mask, q_len, kv_len, q_offset=q_offset, block_size=block_size)
    blocks = work.empty + work.mixed + work.full
    sizes = f"{block_size[0]} x {block_size[1]}"
    parts += [
        Text(f"blocks of {sizes}: {blocks:,} = {work.empty:,} empty + {work.mixed:,} mixed + {work.full:,} full"),
        Text(f"pairs visible:  {work.pairs_kept:,} of {work.pairs:,} ({work.pairs_kept / work.pairs:.1%})"),
        Text(f"pairs computed: {work.pairs_computed:,} ({work.pairs_computed / work.pairs:.1%})"),
    ]
    return Group(*parts)


def score_picture(score: Score, case_name: str) -> Group:
    """A heat map over the pairs, or a list of values for a score that is the same at every pair."""
    size, start = drawing.TOKENS_SHOWN, 0.0 if score.additive else 1.0
    values = drawing.score_map(score, start, size, size)
    if bool((values == values[0, 0]).all()):
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("scaled q.k", "becomes"):
            table.add_column(column, justify="right")
        for scaled in SCALED_SCORES:
            table.add_row(f"{scaled:g}", f"{float(drawing.score_map(score, scaled, 1, 1)):.6g}")
        return Group(Text(f"\ncase {case_name}, the same at every pair", style="bold"), table)
    finite = values[values.isfinite()]
    return Group(
        _heading(case_name, size, size),
        Text(drawing.draw_heat(values), no_wrap=True),
        Text(f"what a scaled q.k of {start:g} becomes: from {finite.min():.4g} (blank) to {finite.max():.4g} (solid)"),
    )


def verification_summary(reports: Sequence[Report]) -> Table:
    """One line an entry: how many checks ended how."""
    checks = sum(len(report.rows) for report in reports)
    table = Table(title=f"verified {len(reports)} entries: {checks:,} checks", title_justify="left")
    table.add_column("entry", no_wrap=True)
    for column in (*OUTCOME_STYLES, "backends"):
        table.add_column(column, justify="right")
    agreeing: dict[str, None] = {}
    for report in reports:
        outcomes = [row.outcome for row in report.rows]
        right = [row.check for row in report.rows if row.check.endswith(AGREES) and row.outcome == "ok"]
        backends = dict.fromkeys(check.removesuffix(AGREES) for check in right)
        agreeing |= backends
        counts = [str(outcomes.count(outcome)) for outcome in ("ok", "wrong", "unsupported")]
        style = "" if report.ok else OUTCOME_STYLES["wrong"]
        table.add_row(report.name, *counts, str(len(backends)), style=style)
    agreed = f"backends that agree with float64: {', '.join(agreeing) or 'none'}"
    table.caption = f"{agreed}; unsupported: a backend that says it does not compute this"
    table.caption_justify = "left"
    return table


def print_for_terminal(console: Console, content: Group) -> None:
    """Print; in ASCII where the terminal has no other characters."""
    if not console.options.ascii_only:
        console.print(content)
        return
    with console.capture() as capture:
        console.print(content)
    console.out(capture.get().translate(drawing.ASCII), highlight=False, end="")


def _heading(case_name: str, q_len: int, kv_len: int) -> Text:
    return Text(f"\ncase {case_name}: {q_len:,} queries x {kv_len:,} keys", style="bold")


def _citation(paper: Paper) -> str:
    source = f"arXiv {paper.arxiv}" if paper.arxiv else paper.url
    return ", ".join(part for part in (paper.title, source, paper.where) if part)


def _plain(text: str) -> str:
    return text.replace("``", "")
