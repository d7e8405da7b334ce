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
    """The dense form of the recipe with these parameters."""
    entry = registry.info(name)
    case = setting.get("case", "bench" if entry.kind == "score" else next(iter(entry.cases)))
    fields = {field: value for field, value in setting.items() if field not in ("case", "sample", "head")}
    part = entry.cases[case].make(q_len, kv_len, "cpu")
    return dense_of(dataclasses.replace(part, **fields) if fields else part, setting, q_len, kv_len, shown_on)


def dense_of(part: Any, setting: dict[str, Any], q_len: int, kv_len: int, shown_on: str) -> Tensor:
    """The dense form of the sample and head of a setting, 0 and 1 of a mask, values of a score."""
    batch, heads = part.batch_and_heads()
    if isinstance(part, am.Mask):
        dense = part.dense(q_len, kv_len).expand(batch, heads, q_len, kv_len).long()
    else:
        start = {"zero": torch.zeros(kv_len), "one": torch.ones(kv_len), "ramp": torch.linspace(-100, 100, kv_len)}
        scores = start[shown_on].double().expand(batch, heads, q_len, kv_len).contiguous()
        dense = part.dense(scores, torch.arange(q_len), torch.arange(kv_len)).detach()
    return dense[setting.get("sample", 0), setting.get("head", 0)]


def assert_drawn(data: dict[str, Any], number: int, dense: Tensor) -> None:
    """The frame of that number shows this matrix: a mask's pairs, a score's values as near as its steps are."""
    if data["kind"] == "mask":
        assert torch.equal(unpacked(data["frames"][number], 1, dense.numel()), dense.flatten())
        return
    low, high = data["ranges"][number]
    drawn = low + (high - low) * unpacked(data["frames"][number], 4, dense.numel()) / 15
    step = (float(dense.max()) - float(dense.min())) / 15
    assert (drawn - dense.flatten()).abs().max() <= 0.51 * step + 1e-3 * dense.abs().max()
    rows = data["extremes"][data["extremes_of_frame"][number]]
    assert rows == [told(row) for row in dense.tolist()]


def told(row: list[float]) -> str:
    """The keys of the highest and of the lowest values, as they are told of a row."""
    high, low = ([key for key, value in enumerate(row) if value == end] for end in (max(row), min(row)))
    return "" if high == low else f"{in_runs(high)};{in_runs(low)}"


def in_runs(keys: list[int]) -> str:
    """Ascending numbers, those in a row as their first and last: [0, 1, 2, 9] is "0-2,9"."""
    runs: list[list[int]] = []
    for key in keys:
        if runs and runs[-1][-1] == key - 1:
            runs[-1].append(key)
        else:
            runs.append([key])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def settings(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Every setting of an explorer, in the order of its frames."""
    names = [axis["name"] for axis in data["axes"]]
    products = itertools.product(*(axis["values"] for axis in data["axes"]))
    return [dict(zip(names, values, strict=True)) for values in products]


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_the_dense_form(
    pages: dict[str, str], name: str, record_property: Callable[[str, object], None]
) -> None:
    data = json.loads(pages[f"frames/{name}.json"])
    seen = 0
    for lengths in data["lengths"]:
        pair = lengths["q_len"], lengths["kv_len"]
        for setting, number in zip(settings(data), lengths["frames"], strict=True):
            if number < 0:
                with pytest.raises((ValueError, TypeError, IndexError)):
                    expected(name, setting, *pair, data.get("shown_on", ""))
                continue
            assert_drawn(data, number, expected(name, setting, *pair, data.get("shown_on", "")))
            seen += 1
    assert seen >= len(data["lengths"]) > 0
    record_property("frames of the gallery held against dense", seen)


@pytest.mark.parametrize("name", NAMES)
def test_programs_make_what_their_frames_show(
    pages: dict[str, str], name: str, record_property: Callable[[str, object], None]
) -> None:
    data = json.loads(pages[f"frames/{name}.json"])
    cases = next((axis["values"] for axis in data["axes"] if axis["name"] == "case"), [])
    for lengths in data["lengths"]:
        pair = lengths["q_len"], lengths["kv_len"]
        programs = zip(cases, lengths.get("programs", []), strict=True)
        parts = {case: made(program, f"{case} of {name} at {pair}") for case, program in programs}
        shown = zip(settings(data), lengths["frames"], strict=True)
        for setting, number in [(setting, number) for setting, number in shown if cases and number >= 0]:
            dense = dense_of(parts[setting["case"]], setting, *pair, data.get("shown_on", ""))
            assert torch.equal(dense, expected(name, setting, *pair, data.get("shown_on", ""))), setting
            assert_drawn(data, number, dense)
        record_property("programs of explorers run", len(parts))


def test_what_parameters_cannot_say_in_a_slider_is_said_in_programs(pages: dict[str, str]) -> None:
    shown = {name for name in NAMES if "programs" in json.loads(pages[f"frames/{name}.json"])["lengths"][0]}
    assert {"document", "document_causal", "shared_prefix", "cumsum_ar", "tree_verification", "sliding_tile"} <= shown
    assert {"neighborhood", "pair_bias", "head_bias", "relative_bias_table"} <= shown


def made(program: str, name: str) -> Any:
    """The mask or score that a program makes."""
    namespace: dict[str, Any] = {}
    exec(compile(program, f"<the program {name}>", "exec"), namespace)
    return namespace.get("mask", namespace.get("score"))


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_slider_changes_the_picture(pages: dict[str, str], name: str) -> None:
    for axis in json.loads(pages[f"frames/{name}.json"])["axes"]:
        assert len(axis["values"]) > 1 and 0 <= axis["start"] < len(axis["values"])


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_called_as_another_control_is_in_the_address(pages: dict[str, str], name: str) -> None:
    axes = [axis["name"] for axis in json.loads(pages[f"frames/{name}.json"])["axes"]]
    assert not {"length", "view", "block-size", "zoom", "q", "h"} & set(axes)


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
