"""How many blocks and pairs a mask leaves to compute, counted when the page is made."""

from __future__ import annotations

from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.work import Work, count_work
from docs.generator.examples import Example, make

LENGTHS = (1024, 4096, 16384)
BLOCK = 128


def work_table(entry: Entry) -> str:
    """Counts at several lengths as Markdown."""
    lines = [
        f"The case `bench`, blocks of {BLOCK} x {BLOCK}. A kernel skips empty blocks and evaluates the rule in mixed "
        "ones. Counted exactly when this page was made.",
        "",
        "| queries x keys | empty | mixed | full | pairs kept | of all | pairs computed |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for example in _examples(entry):
        work = counted(example)
        lines.append(
            f"| {example.q_len:,} x {example.kv_len:,} | {work.empty:,} | {work.mixed:,} | {work.full:,} | "
            f"{work.pairs_kept:,} | {work.pairs_kept / work.pairs:.2%} | {work.pairs_computed:,} |"
        )
    return "\n".join(lines)


def counted(example: Example) -> Work:
    """The exact counts of an example."""
    if not isinstance(example.part, Mask):
        raise TypeError(f"{example.part.name}: only a mask leaves blocks out")
    offset = None if example.q_len == example.kv_len else 0
    return count_work(example.part, example.q_len, example.kv_len, q_offset=offset, block_size=BLOCK)


def _examples(entry: Entry) -> list[Example]:
    own = entry.cases["bench"].lengths
    pairs = (
        [(length, length) for length in LENGTHS]
        if own is None
        else sorted((p for p in own if p[1] >= BLOCK), key=lambda p: (p[1], p[0]))
    )
    found = [example for pair in pairs if (example := make(entry, "bench", *pair)) is not None]
    return found[-len(LENGTHS) :]
