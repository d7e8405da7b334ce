"""Which backends compute an entry, and why the others do not: what they say themselves, without tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_mods import backends
from attn_mods.backends import Backend, Needs, Shapes
from attn_mods.entry import Entry
from attn_mods.recipe import Recipe
from docs.generator.examples import Example, make
from docs.generator.prose import prose

LENGTHS = {"mask": 4096, "score": 1024}  # some scores hold a number for every pair and head
HEADS, HEAD_DIM = 16, 128
CALLS = (("cuda", torch.bfloat16), ("cpu", torch.float32))
MATRIX = "yes, by a matrix of queries x keys"


@dataclass(frozen=True)
class Answer:
    """What one backend says of a call.

    Attributes:
        runs: Whether it computes it.
        text: "yes", how, or why not.
    """

    runs: bool
    text: str


def bench(entry: Entry) -> Example:
    """The case that is measured, at a usual length or the longest of its own lengths up to there.

    Raises:
        LookupError: It has none.
    """
    longest = LENGTHS[entry.kind]
    own = entry.cases["bench"].lengths
    for q_len, kv_len in sorted(own or [(longest, longest)], key=lambda pair: (pair[1], pair[0]), reverse=True):
        example = make(entry, "bench", q_len, kv_len) if kv_len <= longest else None
        if example is not None:
            return example
    raise LookupError(f"{entry.name}: the case bench has no lengths up to {longest}")


def answers(example: Example) -> dict[str, tuple[Answer, ...]]:
    """For every backend what it says on a CUDA card and on a CPU, forward."""
    recipe = Recipe.of(example.part)
    batch, own_heads = recipe.batch_and_heads()
    heads = own_heads if own_heads > 1 else HEADS
    shapes = Shapes(batch, heads, heads, example.q_len, example.kv_len, HEAD_DIM, HEAD_DIM)
    return {
        backend.name: tuple(_answer(backend, recipe, shapes, dtype, torch.device(device)) for device, dtype in CALLS)
        for backend in backends.ALL
    }


def _answer(backend: Backend, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Answer:
    reason = backend.supports(recipe, shapes, dtype, device, Needs())
    if reason is not None and reason.package:
        return Answer(True, f"yes, with the package {reason.package}")
    if reason is not None:
        return Answer(False, f"no: {reason}")
    return Answer(True, MATRIX if backend.is_dense(recipe, shapes) else "yes")


def on_a_card(example: Example) -> tuple[int, int]:
    """How many backends compute it on a CUDA card, and how many there are."""
    found = answers(example)
    return sum(on_card.runs for on_card, _ in found.values()), len(found)


def equivalents(entry: Entry) -> str:
    """The table of backends as Markdown."""
    example = bench(entry)
    lines = [
        f"The case `bench` with {example.q_len:,} queries and {example.kv_len:,} keys, forward. "
        "This is what each backend says of itself; `am.explain(q, k, v, recipe)` asks the same for your tensors.",
        "",
        "| backend | CUDA card, bfloat16 | CPU, float32 |",
        "| --- | --- | --- |",
    ]
    for name, (on_card, on_cpu) in answers(example).items():
        lines.append(f"| `{name}` | {prose(on_card.text)} | {prose(on_cpu.text)} |")
    return "\n".join(lines)
