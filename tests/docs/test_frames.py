"""What a page draws is what the recipe computes: every frame of every explorer, and of the page on composing."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import masks, registry
from attn_mods.tiles import EMPTY, FULL, MIXED
from attn_mods.tiles.states import UNKNOWN
from docs.generator.compose import OPERATORS
from docs.generator.examples import catalogue
from docs.generator.pictures import rectangles

NAMES = [entry.name for entry in catalogue()]


def unpacked(text: str, bits: int, count: int) -> Tensor:
    """The values that were packed, highest bits first: written without looking at how they are packed."""
    digits = "".join(f"{byte:08b}" for byte in base64.b64decode(text))
    return torch.tensor([int(digits[at * bits : (at + 1) * bits], 2) for at in range(count)])


def expected(name: str, setting: dict[str, Any], q_len: int, kv_len: int, shown_on: str) -> Tensor:
    """The recipe's own dense form, 0 and 1 of a mask, values of a score."""
    entry = registry.info(name)
    case = setting.get("case", "bench" if entry.kind == "score" else next(iter(entry.cases)))
    fields = {field: value for field, value in setting.items() if field not in ("case", "sample", "head")}
    part = entry.cases[case].make(q_len, kv_len, "cpu")
    part = dataclasses.replace(part, **fields) if fields else part
    batch, heads = part.batch_and_heads()
    if entry.kind == "mask":
        dense = part.dense(q_len, kv_len).expand(batch, heads, q_len, kv_len).long()
    else:
        start = {"zero": torch.zeros(kv_len), "one": torch.ones(kv_len), "ramp": torch.linspace(-100, 100, kv_len)}
        scores = start[shown_on].double().expand(batch, heads, q_len, kv_len).contiguous()
        dense = part.dense(scores, torch.arange(q_len), torch.arange(kv_len)).detach()
    return dense[setting.get("sample", 0), setting.get("head", 0)]


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_the_dense_form(
    pages: dict[str, str], name: str, record_property: Callable[[str, object], None]
) -> None:
    data = json.loads(pages[f"frames/{name}.json"])
    axes = data["axes"]
    seen = 0
    for lengths in data["lengths"]:
        q_len, kv_len = lengths["q_len"], lengths["kv_len"]
        products = itertools.product(*(axis["values"] for axis in axes))
        for values, number in zip(products, lengths["frames"], strict=True):
            setting = dict(zip((axis["name"] for axis in axes), values, strict=True))
            if number < 0:
                with pytest.raises((ValueError, TypeError, IndexError)):
                    expected(name, setting, q_len, kv_len, data.get("shown_on", ""))
                continue
            dense = expected(name, setting, q_len, kv_len, data.get("shown_on", ""))
            if data["kind"] == "mask":
                assert torch.equal(unpacked(data["frames"][number], 1, dense.numel()), dense.flatten()), setting
            else:
                low, high = data["ranges"][number]
                levels = unpacked(data["frames"][number], 4, dense.numel())
                drawn = low + (high - low) * levels / 15
                step = (float(dense.max()) - float(dense.min())) / 15
                assert (drawn - dense.flatten()).abs().max() <= 0.51 * step + 1e-3 * dense.abs().max(), setting
            seen += 1
    assert seen >= len(data["lengths"]) > 0
    record_property("frames of the gallery held against dense", seen)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_slider_changes_the_picture(pages: dict[str, str], name: str) -> None:
    for axis in json.loads(pages[f"frames/{name}.json"])["axes"]:
        assert len(axis["values"]) > 1 and 0 <= axis["start"] < len(axis["values"])


def test_composed_masks_are_their_frames(pages: dict[str, str]) -> None:
    data = json.loads(pages["compose.json"])
    names = {"am": am, "masks": masks}
    assert [mask["name"] for mask in data["masks"]] == am.names(kind="mask")
    for mask in data["masks"]:
        made = eval(mask["code"], names)
        dense = made.dense(data["length"], data["length"])
        dense = dense.reshape(-1, *dense.shape[-2:])[0]
        assert torch.equal(unpacked(mask["frame"], 1, dense.numel()), dense.long().flatten()), mask["name"]


@pytest.mark.parametrize("sign", list(OPERATORS))
def test_claims_about_composed_blocks_hold(pages: dict[str, str], sign: str) -> None:
    data = json.loads(pages["compose.json"])
    length, block = data["length"], data["block"]
    frames = [unpacked(mask["frame"], 1, length**2).bool().reshape(length, length) for mask in data["masks"]]
    table = torch.tensor(data["tables"][sign])
    for left, right in itertools.product(frames, frames):
        claims = table[states(left, block), states(right, block)]
        truth = states(OPERATORS[sign](left, right), block)
        assert bool(((claims == truth) | (claims == UNKNOWN)).all())


def states(visible: Tensor, block: int) -> Tensor:
    """EMPTY, FULL or MIXED for every block, from its pairs."""
    tiles = visible.unfold(0, block, block).unfold(1, block, block).flatten(2).float().mean(-1)
    return torch.where(tiles == 0, EMPTY, torch.where(tiles == 1, FULL, MIXED))


@pytest.mark.parametrize("seed", range(5))
def test_rectangles_cover_every_visible_pair_once(seed: int) -> None:
    visible = torch.rand(9, 13, generator=torch.Generator().manual_seed(seed)) < 0.6
    covered = torch.zeros(9, 13, dtype=torch.int)
    for x, y, width, height in rectangles(visible):
        covered[y : y + height, x : x + width] += 1
    assert torch.equal(covered, visible.int())
