"""What the backends of the code at hand refuse, of what was measured on whatever device."""

from __future__ import annotations

import functools

import torch

from attn_mods import backends
from attn_mods.backends import Needs
from attn_mods.recipe import Recipe
from benchmarks.attention.cases import Group


@functools.cache
def refusals(group: Group, device: str, training: bool, options: frozenset[str] = frozenset()) -> dict[str, str]:
    """By backend why it does not compute a group; a package that is not installed here is no reason.

    Args:
        group: What was measured.
        device: "cuda" or "cpu".
        training: Whether gradients are wanted.
        options: Names of kernel options that are on, with fwd_ or bwd_ before them.
    """
    group = group.to_ask_about()
    recipe = _placed(group)
    needs = Needs(input_gradients=training, kernel_options=bool(options), options_on=options)
    asked = recipe, group.shape.shapes, group.shape.torch_dtype, torch.device(device), needs
    reasons = {backend.name: backend.supports(*asked) for backend in backends.ALL}
    return {each: str(reason) for each, reason in reasons.items() if reason is not None and not reason.package}


def _placed(group: Group) -> Recipe:
    """The recipe as ``attention`` hands it to a backend."""
    recipe, shape = group.recipe("cpu"), group.shape
    return recipe.sized(shape.B, shape.Hq).place(shape.q_len, shape.kv_len, group.q_offset(recipe))
