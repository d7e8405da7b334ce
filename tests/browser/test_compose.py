"""The page on which masks are combined: pixels, words and code, for every pair of masks and every operator."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import masks
from attn_mods.tiles import States
from docs.generator.compose import BLOCK, LENGTH, OPERATORS, compose_data
from docs.generator.examples import catalogue
from tests.browser.conftest import Visit
from tests.browser.test_explorer import opacities
from tests.docs.test_frames import states

NAMES = am.names(kind="mask")
SIGNS = list(OPERATORS)
NAMED = ["empty", "full", "mixed", "unknown"]
STEPS = """async (expressions) => {
    const frames = await import(new URL("../../assets/frames.js", location.href));
    const { steps } = await import(new URL("../../assets/composition.js", location.href));
    const data = await frames.load("../compose.json");
    return expressions.map((terms) => steps(data, terms).map(({ rows, claims, pixels }) => ({
        rows: rows.map((row) => [row.left, row.right, row.claim, row.blocks, row.truth]),
        claims: [...claims],
        pixels: pixels.join(""),
    })));
}"""
Term = tuple[str, bool, int]
"""An operator, whether the mask is complemented, and the number of the mask."""


@pytest.fixture(scope="module")
def parts() -> list[Any]:
    """The masks that are combined, as the code on the page makes them."""
    codes = {mask["name"]: mask["code"] for mask in compose_data(catalogue())["masks"]}
    return [eval(codes[name], {"am": am, "masks": masks}) for name in NAMES]


def calculated(page: Any, expressions: list[list[Term]]) -> list[Any]:
    """What the page makes of every operator of every expression."""
    terms = [[{"sign": sign, "not": no, "mask": mask} for sign, no, mask in each] for each in expressions]
    found: list[Any] = page.evaluate(STEPS, terms)
    return found


def applied(terms: list[Term], parts: list[Any]) -> Iterator[tuple[list[list[Any]], list[int], str]]:
    """The same by the library's masks and its calculus: rows of the table, claims and pixels of every operator."""
    masked = [~parts[mask] if no else parts[mask] for _, no, mask in terms]
    whole, claims = masked[0], states(visible(masked[0]), BLOCK)
    for (sign, _, _), right in zip(terms[1:], masked[1:], strict=True):
        left, other = claims, states(visible(right), BLOCK)
        claims = OPERATORS[sign](as_states(left), as_states(other)).codes.reshape(left.shape)
        whole = OPERATORS[sign](whole, right)
        yield (
            rows_of(left, other, claims, states(visible(whole), BLOCK)),
            claims.flatten().tolist(),
            "".join(map(str, visible(whole).int().flatten().tolist())),
        )


def as_states(codes: Tensor) -> States:
    """Codes of blocks as the calculus holds them."""
    return States(codes.to(torch.uint8)[None, None])


def rows_of(left: Tensor, right: Tensor, claims: Tensor, truth: Tensor) -> list[list[Any]]:
    """How many blocks each pair of states met in, what is claimed of them, and how many are truly what."""
    met = list(zip(*(codes.flatten().tolist() for codes in (left, right, claims, truth)), strict=True))
    blocks, found = Counter(each[:3] for each in met), Counter(met)
    return [[*key, blocks[key], [found[*key, state] for state in range(3)]] for key in sorted(blocks)]


def made(page: Any) -> dict[str, Any]:
    """What the program on the page makes."""
    namespace: dict[str, Any] = {}
    exec(compile(page.inner_text(".am-code code"), "<the program of the page on composing>", "exec"), namespace)
    return namespace


def visible(mask: am.Mask) -> torch.Tensor:
    """The dense form of the first sample and head."""
    return mask.dense(LENGTH, LENGTH).reshape(-1, LENGTH, LENGTH)[0]


@pytest.mark.parametrize("sign", SIGNS)
def test_every_pair_is_combined_as_in_python(visit: Visit, parts: list[Any], sign: str) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    pairs = list(itertools.product(range(len(NAMES)), repeat=2))
    assert_as_in_python(page, [[("&", False, left), (sign, False, right)] for left, right in pairs], parts)


def test_three_and_four_masks_are_combined_as_in_python(visit: Visit, parts: list[Any]) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(len(NAMES) * 6, (200, 4), generator=generator).tolist()
    expressions = [[(SIGNS[n % 3], n % 2 == 0, n // 6) for n in numbers[: 3 + numbers[0] % 2]] for numbers in drawn]
    assert_as_in_python(page, expressions, parts)


def assert_as_in_python(page: Any, expressions: list[list[Term]], parts: list[Any]) -> None:
    """Every operator of every expression says on the page what it says in Python."""
    for terms, found in zip(expressions, calculated(page, expressions), strict=True):
        truth = [{"rows": rows, "claims": claims, "pixels": bits} for rows, claims, bits in applied(terms, parts)]
        assert found == truth, [(sign, no, NAMES[mask]) for sign, no, mask in terms]


def shown_tables(page: Any) -> list[list[list[Any]]]:
    """The rows of every table on the page, as numbers."""
    tables = []
    for table in page.locator(".am-states").all():
        rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
        tables.append([read_row(*row) for row in rows])
    return tables


def read_row(left: str, right: str, blocks: str, claim: str, truth: str) -> list[Any]:
    """A row of a table as numbers."""
    found = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", truth)}
    states_met = [NAMED.index(name) for name in (left, right, claim)]
    return [*states_met, int(blocks), [found.get(name, 0) for name in NAMED[:3]]]


@pytest.mark.parametrize(
    ("address", "terms", "heads"),
    [
        ("causal.minus.document", [("&", 0, "causal"), ("-", 0, "document")], ["a - b"]),
        (
            "sliding_window.and.document.or.prefix_lm",
            [("&", 0, "sliding_window"), ("&", 0, "document"), ("|", 0, "prefix_lm")],
            ["a & b", "(a & b) | c"],
        ),
        (
            "full.minus.not-area.and.causal.or.not-document",
            [("&", 0, "full"), ("-", 1, "area"), ("&", 0, "causal"), ("|", 1, "document")],
            ["a - ~b", "(a - ~b) & c", "((a - ~b) & c) | ~d"],
        ),
    ],
)
def test_every_operator_has_its_table(
    visit: Visit, parts: list[Any], address: str, terms: list[Any], heads: list[str]
) -> None:
    page = visit.open(f"gallery/compose/?terms={address}", ".am-compose[data-shown]")
    truth = list(applied([(sign, bool(no), NAMES.index(name)) for sign, no, name in terms], parts))
    assert shown_tables(page) == [rows for rows, _, _ in truth]
    captions = page.locator(".am-table .am-legend").all_inner_texts()
    for head, caption, (_, claims, _) in zip(heads, captions, truth, strict=True):
        assert caption.startswith(f"{head}: the states alone settle {len(claims) - claims.count(3)} of 64 blocks")
    firsts = [page.locator(".am-states").nth(at).locator("th").first.inner_text() for at in range(len(heads))]
    assert firsts == ["a", *heads[:-1]]


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


def test_focus_goes_to_the_mask_that_was_added_and_stays_where_one_was_taken(visit: Visit) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    page.focus("text=Add a mask")
    for added in (3, 4):
        page.keyboard.press("Enter")
        assert page.locator(".am-term").count() == added
        assert page.evaluate("document.activeElement === document.querySelector('.am-term:last-of-type select')")
        if added < 4:
            page.focus("text=Add a mask")
    page.focus("text=Take the last one away")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Take the last one away"
    page.keyboard.press("Enter")
    assert page.locator(".am-term").count() == 2
    assert page.evaluate("document.activeElement.textContent") == "Add a mask"


def test_the_combined_picture_follows_the_size_of_the_window(visit: Visit) -> None:
    page = visit.open("gallery/compose/", ".am-compose[data-shown]")
    for width, zoom in ((360, "5"), (1280, "6"), (280, "3")):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_selector(f'.am-canvas[data-zoom="{zoom}"]')
        assert torch.equal(opacities(page).bool(), visible(made(page)["mask"]))
