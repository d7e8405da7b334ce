"""The tabs of a page that show an entry in use, each a program that runs as it stands."""

from __future__ import annotations

import inspect
from pathlib import Path

from attn_mods.entry import Entry
from docs.generator.constructors import builder, constructor
from docs.generator.examples import Example, first
from docs.generator.fixed_functions import flash, sdpa

ROOT = Path(__file__).parents[2]
LENGTH = 16
HEADS = 8


def tabs(entry: Entry) -> str:
    """All ways to use an entry, as Markdown tabs."""
    example = first(entry, LENGTH)
    opening = _opening(entry, example)
    sections = [_tab("One call", _one_call(entry, opening)), _tab("flex_attention", _plain_flex(example, opening))]
    for title, found in (("SDPA", sdpa(example)), ("flash-attn", flash(example))):
        if found is not None:
            code, note = found
            sections.append(_tab(title, _program(opening, code), note))
    sections.append(_tab("The whole file", f'--8<-- "{_file(entry)}"', title=_file(entry)))
    return "\n".join(sections)


def _one_call(entry: Entry, opening: list[str]) -> str:
    return _program(opening, f"out = am.attention(q, k, v, {entry.kind})")


def _plain_flex(example: Example, opening: list[str]) -> str:
    lengths = f"{example.q_len}" if example.q_len == example.kv_len else f"{example.q_len}, {example.kv_len}"
    kind = opening[-1].partition(" = ")[0]
    lines = [
        "from torch.nn.attention.flex_attention import flex_attention",
        "",
        "flex = torch.compile(flex_attention)",
        "with torch.no_grad():  # on a CPU flex_attention has no gradients",
        f"    out = flex(q, k, v, **am.Recipe({kind}={kind}).flex_kwargs({lengths}))",
    ]
    return _program(opening, "\n".join(lines))


def _opening(entry: Entry, example: Example) -> list[str]:
    """Lines that make q, k, v and the mask or score."""
    made = constructor(entry, example.part)
    batch, heads = example.part.batch_and_heads()
    heads = heads if heads > 1 else HEADS
    if example.q_len == example.kv_len:
        inputs = [f"q, k, v = torch.randn(3, {batch}, {heads}, {example.q_len}, 64)"]
    else:
        inputs = [
            f"q = torch.randn({batch}, {heads}, {example.q_len}, 64)",
            f"k, v = torch.randn(2, {batch}, {heads}, {example.kv_len}, 64)",
        ]
    imports = ["import torch", "import attn_mods as am", f"from attn_mods import {entry.kind}s", ""]
    return [*imports, *inputs, *made.lines, f"{entry.kind} = {made.expression}"]


def _program(opening: list[str], code: str) -> str:
    """Both together, the imports of ``code`` in front."""
    lines = code.split("\n")
    imports = [line for line in lines if line.startswith("from ")]
    rest = [line for line in lines if line not in imports]
    while rest and not rest[0]:
        rest.pop(0)
    return "\n".join([opening[0], *opening[1:3], *imports, *opening[3:], *_without_double_blanks(rest)])


def _without_double_blanks(lines: list[str]) -> list[str]:
    return [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]


def _tab(label: str, code: str, note: str = "", title: str = "") -> str:
    heading = f' title="{title}"' if title else ""
    body = [f"```python{heading}", *code.split("\n"), "```", *(["", note] if note else [])]
    return "\n".join([f'=== "{label}"', "", *(f"    {line}".rstrip() for line in body), ""])


def _file(entry: Entry) -> str:
    return str(Path(inspect.getfile(builder(entry))).resolve().relative_to(ROOT))
