"""The page on which masks are combined: pixels, words and code, for every pair of masks and every operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attn_mods as am
from attn_mods import masks
from docs.generator.compose import LENGTH, OPERATORS, compose_data
from docs.generator.examples import catalogue
from tests.browser.conftest import Visit
from tests.browser.test_explorer import opacities

NAMES = am.names(kind="mask")
COMBINED = """async ([sign, length]) => {
    const frames = await import(new URL("../../assets/frames.js", location.href));
    const { PIXELS } = await import(new URL("../../assets/compose.js", location.href));
    const data = await frames.load("../compose.json");
    const all = data.masks.map((mask) => frames.unpackBits(mask.frame, length * length));
    const text = (left, right) => left.map((bit, at) => PIXELS[sign](bit, right[at])).join("");
    return all.map((left) => all.map((right) => text(left, right)));
}"""


def made(page: Any) -> dict[str, Any]:
    """What the program on the page makes."""
    namespace: dict[str, Any] = {}
    exec(compile(page.inner_text(".am-code code"), "<the program of the page on composing>", "exec"), namespace)
    return namespace


def visible(mask: am.Mask) -> torch.Tensor:
    """The dense form of the first sample and head."""
    return mask.dense(LENGTH, LENGTH).reshape(-1, LENGTH, LENGTH)[0]


@pytest.mark.parametrize("sign", list(OPERATORS))
def test_every_pair_is_combined_as_in_python(visit: Visit, sign: str) -> None:
    codes = {mask["name"]: mask["code"] for mask in compose_data(catalogue())["masks"]}
    parts = [eval(codes[name], {"am": am, "masks": masks}) for name in NAMES]
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    combined = page.evaluate(COMBINED, [sign, LENGTH])
    for row, left in zip(combined, parts, strict=True):
        for text, right in zip(row, parts, strict=True):
            dense = visible(OPERATORS[sign](left, right))
            assert text == "".join(map(str, dense.int().flatten().tolist())), f"{left.name} {sign} {right.name}"


@pytest.mark.parametrize(
    "terms", ["sliding_window.and.document", "causal.or.prefix_lm", "full.minus.not-area.and.causal"]
)
def test_the_canvas_and_the_program_say_the_same(visit: Visit, terms: str) -> None:
    page = visit.open(f"gallery/compose/?terms={terms}", ".am-compose[data-shown]")
    assert torch.equal(opacities(page).bool(), visible(made(page)["mask"]))


def test_choosing_changes_picture_program_and_address(visit: Visit) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    page.locator('.am-term >> nth=0 >> [name="mask"]').select_option(str(NAMES.index("causal")))
    page.locator('.am-term >> nth=1 >> [name="operator"]').select_option("2")
    assert page.url.endswith("?terms=causal.minus.document")
    page.click("text=Add a mask")
    assert page.locator(".am-term").count() == 3
    assert made(page)["mask"].name == "((causal & ~document) & full)"
    assert torch.equal(opacities(page).bool(), visible(made(page)["mask"]))
    assert "settle" in page.inner_text(".am-table")
