"""The tabs of a page that show an entry in use, each a program that runs as it stands."""

from __future__ import annotations

import inspect
from pathlib import Path

from attn_mods.entry import Entry
from docs.generator.constructors import builder, constructor
from docs.generator.examples import Example, first, is_causal
from docs.generator.fixed_functions import flash, sdpa

ROOT = Path(__file__).parents[2]
LENGTH = 16
HEADS = 8


def tabs(entry: Entry) -> str:
    """All ways to use an entry, as Markdown tabs."""
    example = first(entry, LENGTH)
    opening = _opening(entry, example)
    sections = [_tab("One call", _one_call(entry, opening)), _tab("flex_attention", _plain_flex(example, opening))]
    by_sdpa, by_flash = sdpa(entry, example, is_causal(entry)), flash(example, is_causal(entry))
    if by_sdpa is not None:
        sections.append(_tab("SDPA", _program(opening, by_sdpa[0]), by_sdpa[1]))
    if by_flash is not None:
        on_a_card = [line.replace(", 64)", ', 64, device="cuda", dtype=torch.bfloat16)') for line in opening]
        sections.append(_tab("flash-attn", _program(on_a_card, by_flash[0]), by_flash[1]))
    sections.append(_tab("The whole file", f'--8<-- "{_file(entry)}"', title=_file(entry)))
    return "\n".join(sections)


def _one_call(entry: Entry, opening: list[str]) -> str:
    return _program(opening, f"out = am.attention(q, k, v, {_shown(opening)})")


def _plain_flex(example: Example, opening: list[str]) -> str:
    lengths = f"{example.q_len}" if example.q_len == example.kv_len else f"{example.q_len}, {example.kv_len}"
    shown = _shown(opening)
    recipe = shown if shown == "recipe" else f"am.Recipe({shown}={shown})"
    lines = [
        "from torch.nn.attention.flex_attention import flex_attention",
        "",
        "flex = torch.compile(flex_attention)",
        "with torch.no_grad():  # on a CPU flex_attention has no gradients",
        f"    out = flex(q, k, v, **{recipe}.flex_kwargs({lengths}))",
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
    recipe = _recipe(entry)
    modules = "masks, scores" if "masks." in recipe else f"{entry.kind}s"
    imports = ["import torch", "import attn_mods as am", f"from attn_mods import {modules}", ""]
    return [*imports, *inputs, *made.lines, f"{entry.kind} = {made.expression}", *([recipe] if recipe else [])]


def _recipe(entry: Entry) -> str:
    """The line that makes a recipe of a score that needs a mask or a scale of its own; empty for others."""
    if entry.kind == "mask" or not (is_causal(entry) or entry.scale is not None):
        return ""
    parts = ["masks.Causal(), score" if is_causal(entry) else "score=score"]
    parts += [] if entry.scale is None else [f"scale={entry.scale}"]
    return f"recipe = am.Recipe({', '.join(parts)})"


def _shown(opening: list[str]) -> str:
    """The name of what is handed to attention."""
    return opening[-1].partition(" = ")[0]


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
