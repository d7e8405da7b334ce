"""How an entry was checked: what the tests and ``verify`` do with this one, asked of the entry and of the backends."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch

from attn_mods import backends, registry, verification
from attn_mods.backends import Needs, Shapes
from attn_mods.entry import Entry
from attn_mods.entry_checks import LARGEST_SCORE_ERROR, picture_of
from attn_mods.fused.form import Unfit, form_of
from attn_mods.fused.source import source_of
from attn_mods.mask import Mask
from attn_mods.recipe import Recipe
from attn_mods.score import Score
from attn_mods.tiles import Grid
from attn_mods.tiles.trace import recorded
from docs.generator.equivalents import HEAD_DIM, HEADS, bench
from docs.generator.examples import Example, checked
from docs.generator.prose import bulleted, code
from docs.generator.work_table import BLOCK


def how_checked(entry: Entry) -> str:
    """The section "How it was checked" of an entry's page, as Markdown."""
    example = bench(entry)
    cases = ", ".join(code(case) for case in entry.cases)
    lines = [
        f"By the tests, on the cases {cases}:",
        bulleted([*_of_its_form(entry), _gradients(entry), _mutants(entry)]),
        "`verify` holds these backends against attention computed densely in float64, on a CPU in float32:",
        bulleted(_of_backends(entry)),
        "It does so where you are, and with `--device cuda` on your card:",
        f"```text\nattn-mods verify {entry.name}\n```",
        f"The case `bench` is `{_one_line(repr(example.part))}` at {example.q_len:,} x {example.kv_len:,}. "
        "[How it is tested](../how_tested.md) says more.",
    ]
    return "\n\n".join(lines)


def tiny(entry: Entry) -> Example:
    """The case "tiny" as ``verify`` looks at it last."""
    case = entry.cases["tiny"]
    q_len, kv_len = (case.lengths or verification.LENGTHS)[-1]
    return checked(case.make(q_len, kv_len, "cpu"), q_len, kv_len)


def _of_its_form(entry: Entry) -> Iterator[str]:
    """Sentences on rule, dense form, picture and blocks."""
    part = tiny(entry).part
    if not isinstance(part, Mask):
        yield f"The rule and the dense form agree on random scores, to {LARGEST_SCORE_ERROR:g} of their size."
        return
    if entry.picture:
        rows, columns = picture_of(entry).shape
        yield f"The picture of the case `tiny`, {rows} x {columns}, drawn by hand, is its dense form."
    yield f"The rule and the dense form agree, pair for pair, at lengths from 1 on, ragged and unequal{_moved(part)}."
    yield (
        "The BlockMask equals the one that PyTorch makes by looking at every pair, list for list, in several block "
        "sizes, square and not."
    )
    yield _kernel(entry)


def _moved(mask: Mask) -> str:
    return ", with the queries first and last among the keys" if mask.frame == "self" else ""


def _kernel(entry: Entry) -> str:
    reason = no_kernel(entry)
    if reason is None:
        return "On a card a kernel generated from the rule finds the blocks; what it says is held against every pair."
    return f"On a card no kernel is generated from the rule ({reason}): the blocks are found as on a CPU."


def no_kernel(entry: Entry) -> str | None:
    """Why no kernel that finds blocks is generated from the rule of a mask; None if one is."""
    example = bench(entry)
    assert isinstance(example.part, Mask)
    grid = Grid(example.q_len, example.kv_len, (BLOCK, BLOCK), *example.part.batch_and_heads())
    graph, unrecorded = recorded(example.part.mask_mod(), grid)
    if graph is None:
        return unrecorded
    try:
        source_of(form_of(graph, grid).form, grid.block_size)
    except Unfit as unfit:
        return str(unfit)
    return None


def _gradients(entry: Entry) -> str:
    *first, last = ["q", "k", "v", *(code(name) for name in learned(entry)), "a sink"]
    return f"The gradients of {', '.join(first)} and {last} agree with finite differences in float64."


def learned(entry: Entry) -> list[str]:
    """The parameters of the case "tiny" that have gradients."""
    tensors = Recipe.of(tiny(entry).part).tensors()
    return [name.rpartition(".")[2] for name, tensor in tensors.items() if tensor.is_floating_point()]


def _mutants(entry: Entry) -> str:
    """A sentence on mutants: of the rule, or, of a composition, of the rules that it is composed of."""
    if inspect.isclass(entry.build):
        return (
            "Every comparison, operator and number of the rule is changed in turn: a test must notice, or a reason "
            "says why nothing can."
        )
    composed = bench(entry).part.parts().values()
    parts = [registry.info(part.name).title for part in composed if isinstance(part, (Mask, Score))]
    return f"It is composed of {' and '.join(parts)}, whose rules are changed in every small way, which tests notice."


def _of_backends(entry: Entry) -> Iterator[str]:
    """Sentences on what is held against attention computed densely in float64."""
    example = tiny(entry)
    computing = claiming(example, Needs())
    compiled = [name for name in computing if name in verification.COMPILED]
    yield f"The output, on every case: {_names([name for name in computing if name not in compiled])}."
    if compiled:
        yield f"The output, on the case `tiny` alone, since compiling takes seconds: {_names(compiled)}."
    yield f"The lse, on the case `tiny`: {_names(claiming(example, Needs(lse=True)))}."
    yield f"The gradients, on the case `tiny`: {_names(claiming(example, Needs(input_gradients=True)))}."


def claiming(example: Example, needs: Needs) -> list[str]:
    """The backends that say that they compute an example on a CPU in float32."""
    recipe = Recipe.of(example.part)
    batch, heads = recipe.batch_and_heads()
    heads = heads if heads > 1 else HEADS
    shapes = Shapes(batch, heads, heads, example.q_len, example.kv_len, HEAD_DIM, HEAD_DIM)
    where = torch.float32, torch.device("cpu")
    return [backend.name for backend in backends.ALL if backend.supports(recipe, shapes, *where, needs) is None]


def _names(names: Sequence[str]) -> str:
    return ", ".join(code(name) for name in names)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."
