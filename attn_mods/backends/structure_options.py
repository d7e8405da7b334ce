"""Options of torch's GPU kernels: structure facts that they are told, and what a caller may not tell them.

Kernels skip work where they are told so, and check nothing. ROWS_GUARANTEED_SAFE leaves out the care for tiles that
hide all of a row so far, BLOCKS_ARE_CONTIGUOUS has a kernel step to the next block instead of reading its number. CPU
kernels have neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from attn_mods.backends.base import Needs, Shapes
from attn_mods.backends.block_mask_cache import BLOCK
from attn_mods.band import Band
from attn_mods.call_checks import without_pass
from attn_mods.recipe import Recipe
from attn_mods.structure_facts import Facts, facts_of

ONE_BLOCK = 1 << 30
"""Without a mask torch lists one block of this size, which holds all queries and keys."""

PASSES = ("fwd_", "bwd_")
"""What stands before the name of an option that is for one pass."""

MOST_DECODING_QUERIES = 127
"""Up to so many queries torch may run its decoding kernel, each part of which may read another tile of a row first."""


def structure_options(
    recipe: Recipe, shapes: Shapes, device: torch.device, needs: Needs, given: Iterable[str]
) -> dict[str, Any]:
    """The options that are true of the lists the flex backend builds for a placed recipe.

    None for lists that were handed in, whose order nothing says; for invariant bits, where one kernel serves all
    lengths; while a compiler traces, to which lengths may be symbols; nor for masks with tensors.

    Args:
        recipe: The placed recipe.
        shapes: Sizes of q, k and v.
        device: Where they are.
        needs: What the call asks for.
        given: Names of the caller's own options, which win over these.
    """
    if device.type != "cuda" or needs.block_mask or needs.invariant or needs.compiling:
        return {}
    facts = _facts(recipe, shapes)
    if facts is None:
        return {}
    # A score may make -inf of a key that the mask keeps; without one only infinite entries of q and k do.
    left_out = {"ROWS_GUARANTEED_SAFE"} if recipe.score is not None else set()
    left_out |= {without_pass(name) for name in given}
    true = _true_options(facts, shapes, needs.training)
    return {name: True for name, holds in true.items() if holds and without_pass(name) not in left_out}


def options_on(given: Mapping[str, Any] | None) -> frozenset[str]:
    """Which of the caller's options are on in which pass: their names with fwd_ or bwd_ before them."""
    given = given or {}
    names = {without_pass(name) for name in given}
    return frozenset(
        each_pass + name for each_pass in PASSES for name in names if given.get(each_pass + name, given.get(name))
    )


def option_refusal(recipe: Recipe, shapes: Shapes, needs: Needs) -> str | None:
    """Why one of the caller's options gives another output, as far as that is known; None if it is not.

    What is claimed of the lists is checked where the mask is a band of plain numbers and no compiler traces the call.
    Elsewhere, and where lists are handed in, it is the caller's word.
    """
    on = {name for name in needs.options_on if needs.training or name.startswith("fwd_")}
    if recipe.score is not None and not on.isdisjoint({"fwd_PRESCALE_QK", "bwd_PRESCALE_QK"}):
        # torch 2.11 to 2.14: q is scaled to base 2 before the product, and so the score's rule gets it in base 2.
        return "with the kernel option PRESCALE_QK a score's rule gets 1.44 times scale * q . k; leave it out"
    facts = None if needs.block_mask or needs.compiling else _facts(recipe, shapes)
    if facts is None:
        return None
    true = _true_options(facts, shapes, needs.training)
    untrue = next((name for name in sorted(on & true.keys()) if not true[name]), None)
    if untrue is None:
        return None
    what = "the first tile that is read may hide all of a row" if "SAFE" in untrue else "there are gaps in the lists"
    return f"the kernel option {without_pass(untrue)} is not true of this mask at these lengths: {what}; leave it out"


def _true_options(facts: Facts, shapes: Shapes, training: bool) -> dict[str, bool]:
    """Whether what a kernel may be told is true; the backward kernel is told of nothing but the order of blocks."""
    true = {
        "fwd_ROWS_GUARANTEED_SAFE": shapes.q_len > MOST_DECODING_QUERIES and facts.rows_are_safe,
        "fwd_BLOCKS_ARE_CONTIGUOUS": facts.rows_are_contiguous,
    }
    if training:
        true["bwd_BLOCKS_ARE_CONTIGUOUS"] = facts.rows_are_contiguous and facts.columns_are_contiguous
    return true


def _facts(recipe: Recipe, shapes: Shapes) -> Facts | None:
    """Of the lists that the flex backend builds; None where they depend on the values of tensors."""
    mask = recipe.mask
    if mask is not None and mask.tensors():
        return None
    band, block = (Band(), ONE_BLOCK) if mask is None else (mask.band(), BLOCK)
    return facts_of(band, shapes.q_len, shapes.kv_len, (block, block))
