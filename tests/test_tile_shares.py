"""How much of the mask the calculus leaves to be scanned, for every mask of the catalogue at 4,096 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mods import masks
from attn_mods.entry import Entry
from attn_mods.tiles import UNKNOWN, Grid, analyse, resolve

LENGTH, BLOCK_SIZE = 4096, (128, 128)
NOTHING_SCANNED = {"full", "causal", "sliding_window", "document", "chunked_causal", "key_padding", "left_padding"}
ENTRIES: list[Entry] = [item if isinstance(item, Entry) else item.entry for item in masks.ALL]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_scanned_share(entry: Entry, record_property: Any) -> None:
    case = entry.cases["bench"]
    q_len, kv_len = max(case.lengths or ((LENGTH, LENGTH),), key=lambda lengths: lengths[0] * lengths[1])
    mask = case.make(q_len, kv_len, "cpu")
    batch, heads = mask.batch_and_heads()
    grid = Grid(q_len, kv_len, BLOCK_SIZE, B=batch, H=heads)
    analysis = resolve(mask.mask_mod(), grid, mask.tile_states(grid))
    positions = batch * heads * q_len * kv_len
    shown = (
        f"{entry.name:24} {q_len:>6} x {kv_len:<6} tiles {analysis.tiles:>6}"
        f"  unknown {analysis.unknown / analysis.tiles:7.2%}  scanned {analysis.scanned / positions:7.2%}"
    )
    record_property("tile shares", shown)
    assert not bool((analysis.states.codes == UNKNOWN).any())
    assert analysis.scanned < positions
    if entry.name in NOTHING_SCANNED:
        assert analyse(mask.mask_mod(), grid).scanned == analysis.scanned == 0
