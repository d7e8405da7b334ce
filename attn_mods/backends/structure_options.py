"""Structure facts as options of torch's GPU kernels, which skip work where they are told so and check nothing.

ROWS_GUARANTEED_SAFE leaves out the care for tiles that hide all of a row so far, BLOCKS_ARE_CONTIGUOUS has a kernel
step to the next block instead of reading its number. CPU kernels have neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from attn_mods.backends.base import Needs, Shapes
from attn_mods.backends.block_mask_cache import BLOCK
from attn_mods.band import Band
from attn_mods.recipe import Recipe
from attn_mods.structure_facts import facts_of

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
    mask = recipe.mask
    if mask is not None and mask.tensors():
        return {}
    band, block = (Band(), ONE_BLOCK) if mask is None else (mask.band(), BLOCK)
    facts = facts_of(band, shapes.q_len, shapes.kv_len, (block, block))
    if facts is None:
        return {}
    # A score may make -inf of a key that the mask keeps; without one only infinite entries of q and k do.
    is_safe = recipe.score is None and shapes.q_len > MOST_DECODING_QUERIES and facts.rows_are_safe
    backward = needs.training and facts.rows_are_contiguous and facts.columns_are_contiguous
    true = {
        "fwd_ROWS_GUARANTEED_SAFE": is_safe,
        "fwd_BLOCKS_ARE_CONTIGUOUS": facts.rows_are_contiguous,
        "bwd_BLOCKS_ARE_CONTIGUOUS": backward,
    }
    named = {_without_pass(name) for name in given}
    return {name: True for name, holds in true.items() if holds and _without_pass(name) not in named}


def _without_pass(option: str) -> str:
    """The option of both passes that one of the forward or backward pass overrides."""
    return option.removeprefix("fwd_").removeprefix("bwd_")
