"""The backends, one file each, and the order in which "auto" tries them."""

from __future__ import annotations

import torch

from attn_mods import checks
from attn_mods.backends.base import Backend, Call, Needs, Reason, Runner, Shapes
from attn_mods.backends.eager import EAGER
from attn_mods.backends.flash3 import FLASH3
from attn_mods.backends.flash4 import FLASH4
from attn_mods.backends.flex import FLEX
from attn_mods.backends.flex_flash import FLEX_FLASH
from attn_mods.backends.nested import NESTED
from attn_mods.backends.sdpa import SDPA_CUDNN, SDPA_EFFICIENT, SDPA_FLASH, SDPA_MATH
from attn_mods.backends.varlen import VARLEN
from attn_mods.recipe import Recipe

ALL: tuple[Backend, ...] = (
    FLEX,
    FLEX_FLASH,
    SDPA_CUDNN,
    SDPA_FLASH,
    SDPA_EFFICIENT,
    SDPA_MATH,
    VARLEN,
    NESTED,
    FLASH3,
    FLASH4,
    EAGER,
)

Order = tuple[tuple[Backend, ...], tuple[Backend, ...]]
"""Backends to try while they hold no q_len x kv_len matrix, then backends to try although they do."""

# Fixed orders, for devices without a table of measurements. On a CPU SDPA's fused kernel needs no compiler where it
# takes a mask as such. Where the matrix cannot be avoided, eager keeps its contract on every value, also non-finite.
ORDER: dict[str, Order] = {
    "cpu": ((SDPA_FLASH, FLEX), (EAGER, SDPA_FLASH, SDPA_MATH)),
    "cuda": ((SDPA_CUDNN, FLEX, SDPA_FLASH, SDPA_EFFICIENT), (SDPA_EFFICIENT, EAGER, SDPA_MATH)),
}
OTHER_DEVICES: Order = ((FLEX,), (EAGER, SDPA_MATH))

__all__ = ["ALL", "Backend", "Call", "Needs", "Reason", "Runner", "Shapes", "get", "in_order"]


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        ValueError: No such backend; the message names near misses.
    """
    for backend in ALL:
        if backend.name == name:
            return backend
    names = [backend.name for backend in ALL]
    near = checks.near_misses(str(name), tuple(names), 3)
    remedy = f"did you mean {near}" if near else f"use auto, {', '.join(names)}"
    checks.fail("attention", "backend must be auto or a backend's name", repr(name), remedy)


def in_order(recipe: Recipe, shapes: Shapes, device: torch.device) -> list[Backend]:
    """The backends in the order "auto" tries them: first those that hold no q_len x kv_len matrix."""
    sparse, dense = ORDER.get(device.type, OTHER_DEVICES)
    return [backend for backend in sparse if not backend.is_dense(recipe, shapes)] + list(dense)
