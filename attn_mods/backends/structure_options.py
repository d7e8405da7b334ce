"""Structure facts as options of torch's GPU kernels, which skip work where they are told so and check nothing.

ROWS_GUARANTEED_SAFE leaves out the care for tiles that hide all of a row so far, BLOCKS_ARE_CONTIGUOUS has a kernel
step to the next block instead of reading its number. CPU kernels have neither.
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
    is_safe = recipe.score is None and _rows_are_safe(facts, shapes)
    backward = needs.training and facts.rows_are_contiguous and facts.columns_are_contiguous
    true = {
        "fwd_ROWS_GUARANTEED_SAFE": is_safe,
        "fwd_BLOCKS_ARE_CONTIGUOUS": facts.rows_are_contiguous,
        "bwd_BLOCKS_ARE_CONTIGUOUS": backward,
    }
    named = {without_pass(name) for name in given}
    return {name: True for name, holds in true.items() if holds and without_pass(name) not in named}


def switched_on(given: Mapping[str, Any] | None) -> frozenset[str]:
    """Which of the caller's options are not off for some pass, by the names that serve both."""
    return frozenset(without_pass(name) for name, value in (given or {}).items() if value)


def untrue_option(recipe: Recipe, shapes: Shapes, needs: Needs) -> str | None:
    """Why one of the options that the caller switched on would give another output; None if nothing is known of that.

    What is claimed of lists that were handed in, or that depend on the values of tensors, is the caller's word.
    """
    if recipe.score is not None and "PRESCALE_QK" in needs.switched_on:
        # torch 2.11 and 2.13: q is scaled to base 2 before the product, and so the score's rule gets it in base 2.
        return "the kernel option PRESCALE_QK hands the score's rule 1.44 times scale * q . k; leave it out"
    claims = needs.switched_on & {"ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"}
    if not claims or needs.block_mask or needs.invariant or needs.compiling:
        return None
    facts = _facts(recipe, shapes)
    if facts is None:
        return None
    is_contiguous = facts.rows_are_contiguous and (facts.columns_are_contiguous or not needs.training)
    true = {"ROWS_GUARANTEED_SAFE": _rows_are_safe(facts, shapes), "BLOCKS_ARE_CONTIGUOUS": is_contiguous}
    untrue = next((claim for claim in sorted(claims) if not true[claim]), None)
    return untrue and f"the kernel option {untrue} does not hold for this mask at these lengths; leave it out"


def _rows_are_safe(facts: Facts, shapes: Shapes) -> bool:
    return shapes.q_len > MOST_DECODING_QUERIES and facts.rows_are_safe


def _facts(recipe: Recipe, shapes: Shapes) -> Facts | None:
    """Of the lists that the flex backend builds; None where they depend on the values of tensors."""
    mask = recipe.mask
    if mask is not None and mask.tensors():
        return None
    band, block = (Band(), ONE_BLOCK) if mask is None else (mask.band(), BLOCK)
    return facts_of(band, shapes.q_len, shapes.kv_len, (block, block))
