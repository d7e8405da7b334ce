"""The internal sizes of the calculus, set small: on grids that a test can afford, every band, chunk and level is used.

A constant that is renamed makes these tests fail, not pass without it.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

# module and constant -> the values it is given instead of its own
KNOBS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("attn_mods.tiles.calculus", "_TILES_AT_ONCE"): (1, 7, 64),  # bands of rows
    ("attn_mods.tiles.calculus", "_COARSE_FROM"): (0, 0, 20),  # tiles of many blocks first
    ("attn_mods.tiles.calculus", "_COARSE"): (2, 3, 8),
    ("attn_mods.tiles.leaves", "_CHUNK"): (1, 50),  # one-variable expressions in parts
    ("attn_mods.tiles.joint", "LARGEST"): (0, 100),  # no tables derived from captured ones, or small ones
    ("attn_mods.tiles.tabulated", "LARGEST"): (0, 100),  # none of what depends on one position
    ("attn_mods.tiles.analysis", "_SAMPLED_FROM"): (0, 0, 1),  # small tiles sampled too
    ("attn_mods.tiles.scanning", "_POSITIONS_AT_ONCE"): (50, 1000),  # sampling and scanning in parts
    ("attn_mods.tiles.scanning", "_ELEMENTS_AT_ONCE"): (300, 5000),  # the same by the widest term
    ("attn_mods.tiles.scanning", "_GRID_SAMPLES"): ((0,), (64,), (0, 128)),  # so few samples that the scan decides
    ("attn_mods.tiles.refining", "_PARTS"): ((), (4,), (2,)),  # no parts, or larger ones
    ("attn_mods.tiles.refining", "_FEWEST"): (1, 1, 4),  # small tiles have parts too
    ("attn_mods.tiles.refining", "_PARTS_AT_ONCE"): (1, 100),
    ("attn_mods.kernels.lists", "_CHUNK"): (1, 10),  # list rows in parts
}


@contextmanager
def random_knobs(seed: int) -> Iterator[dict[str, Any]]:
    """Set a random choice of the constants for a rule, yielding what was set; an even seed leaves all as they are."""
    chance = random.Random(seed)
    chosen: dict[str, Any] = {}
    with ExitStack() as stack:
        if seed % 2:
            for (module, name), values in KNOBS.items():
                if chance.random() < 0.5:
                    value = chance.choice(values)
                    stack.enter_context(mock.patch.object(importlib.import_module(module), name, value))
                    chosen[f"{module}.{name}"] = value
        yield chosen
