"""How much of a mask is evaluated position by position: nothing, for the masks that people use most.

Well-known rules as plain closures, 4,096 tokens in blocks of 128. The table (tiles, share left UNKNOWN by the calculus,
tiles sampled, share of positions scanned) is printed, and each rule's scanned share has a ceiling.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attn_mods.tiles import EMPTY, FULL, MIXED, Grid, analyse
from tests.block_mask_equality import tile_truth

LENGTH, BLOCK = 4096, 128
TILES = (LENGTH // BLOCK) ** 2

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Shape = tuple[int, int]  # B, H


def cuts(count: int, length: int = LENGTH) -> Tensor:
    """Random document boundaries, 0 and ``length`` included."""
    generator = torch.Generator().manual_seed(count)
    inner = torch.randperm(length - 1, generator=generator)[: count - 1] + 1
    return torch.cat([torch.tensor([0]), inner.sort().values, torch.tensor([length])])


def document_ids(count: int = 12) -> Tensor:
    boundaries = cuts(count)
    return torch.repeat_interleave(torch.arange(count), boundaries.diff())


def document() -> Rule:
    ids = document_ids()
    return lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]


def document_causal() -> Rule:
    ids = document_ids()
    return lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)


def document_start_causal() -> Rule:
    starts = cuts(12)[:-1][document_ids()]
    return lambda b, h, q_idx, kv_idx: (kv_idx >= starts[q_idx]) & (q_idx >= kv_idx)


def document_searchsorted() -> Rule:
    boundaries = cuts(12)

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_document = torch.searchsorted(boundaries, q_idx, right=True)
        return q_document == torch.searchsorted(boundaries, kv_idx, right=True)

    return rule


def padding() -> Rule:
    lengths = torch.tensor([4096, 1000, 129, 0])
    return lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]


def padding_causal() -> Rule:
    keep = torch.arange(LENGTH) < torch.tensor([4096, 1000, 129, 0])[:, None]
    return lambda b, h, q_idx, kv_idx: keep[b, kv_idx] & keep[b, q_idx] & (q_idx >= kv_idx)


def left_padding() -> Rule:
    first = torch.tensor([0, 1000, 129, 4095])
    return lambda b, h, q_idx, kv_idx: (kv_idx >= first[b]) & (q_idx >= kv_idx)


def windows_per_head() -> Rule:
    windows = torch.tensor([1, 64, 129, 4096])
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < windows[h])


def block_diffusion() -> Rule:
    half, block = LENGTH // 2, 32

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_noised, kv_noised = q_idx < half, kv_idx < half
        q_block, kv_block = (q_idx % half) // block, (kv_idx % half) // block
        diagonal = (q_block == kv_block) & (q_noised == kv_noised)
        offset = (q_block > kv_block) & q_noised & ~kv_noised
        return diagonal | offset | ((q_block >= kv_block) & ~q_noised & ~kv_noised)

    return rule


def neighbourhood() -> Rule:
    side, radius = 64, 3

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        row, column = (q_idx // side).clamp(radius, side - 1 - radius), (q_idx % side).clamp(radius, side - 1 - radius)
        return ((row - kv_idx // side).abs() <= radius) & ((column - kv_idx % side).abs() <= radius)

    return rule


def dilated() -> Rule:
    return lambda b, h, q_idx, kv_idx: ((q_idx - kv_idx).abs() <= 512) & ((q_idx - kv_idx) % 64 == 0)


def spans() -> Rule:
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(0, LENGTH, (LENGTH,), generator=generator).sort().values
    lengths = torch.randint(1, 200, (LENGTH,), generator=generator)
    return lambda b, h, q_idx, kv_idx: (kv_idx >= starts[q_idx]) & (kv_idx < starts[q_idx] + lengths[q_idx])


def global_tokens() -> Rule:
    is_global = torch.arange(LENGTH) % 1000 < 2
    return lambda b, h, q_idx, kv_idx: is_global[q_idx] | is_global[kv_idx] | ((q_idx - kv_idx).abs() < 100)


def relative_table() -> Rule:
    keep = torch.arange(LENGTH) % 300 < 40
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & keep[(q_idx - kv_idx).clamp(min=0)]


def image_groups() -> Rule:
    """Causal text with images that see themselves both ways, by a cumulated count."""
    is_image = (torch.arange(LENGTH) // 200) % 3 == 1
    groups = torch.where(is_image, (is_image.diff(prepend=torch.tensor([False])) & is_image).cumsum(0), -1)
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | ((groups[q_idx] == groups[kv_idx]) & (groups[q_idx] >= 0))


# name -> (rule, (B, H), the largest share of positions that may be scanned)
RULES: dict[str, tuple[Callable[[], Rule], Shape, float]] = {
    "noop": (lambda: lambda b, h, q_idx, kv_idx: q_idx.new_ones((), dtype=torch.bool), (1, 1), 0),
    "causal": (lambda: lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, (1, 1), 0),
    "causal, difference": (lambda: lambda b, h, q_idx, kv_idx: q_idx - kv_idx >= 0, (1, 1), 0),
    "window": (lambda: lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 1024), (1, 1), 0),
    "window, ragged": (lambda: lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 1000), (1, 1), 0),
    "window, both sides": (lambda: lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= 300, (1, 1), 0),
    "windows per head": (windows_per_head, (1, 4), 0),
    "prefix": (lambda: lambda b, h, q_idx, kv_idx: (kv_idx < 700) | (q_idx >= kv_idx), (1, 1), 0),
    "sink and window": (
        lambda: lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & ((kv_idx < 4) | (q_idx - kv_idx < 512)),
        (1, 1),
        0,
    ),
    "chunked": (lambda: lambda b, h, q_idx, kv_idx: (q_idx // 1000 == kv_idx // 1000) & (q_idx >= kv_idx), (1, 1), 0),
    "block causal": (lambda: lambda b, h, q_idx, kv_idx: q_idx // 96 >= kv_idx // 96, (1, 1), 0),
    "document": (document, (1, 1), 0),
    "document causal": (document_causal, (1, 1), 0),
    "document causal, by starts": (document_start_causal, (1, 1), 0),
    "document, by searchsorted": (document_searchsorted, (1, 1), 0),
    "padding": (padding, (4, 1), 0),
    "padding causal": (padding_causal, (4, 1), 0),
    "left padding causal": (left_padding, (4, 1), 0),
    "global tokens": (global_tokens, (1, 1), 0),
    "image groups": (image_groups, (1, 1), 0.0125),
    "block diffusion": (block_diffusion, (1, 1), 0),
    "neighbourhood 2-D": (neighbourhood, (1, 1), 0),
    "dilated window": (dilated, (1, 1), 0),
    "spans": (spans, (1, 1), 0),
    "relative table": (relative_table, (1, 1), 0),
}


def dense(rule: Rule, B: int, H: int) -> Tensor:
    """The whole mask by plain broadcasting, which these rules allow and which is fast."""
    i = torch.arange(LENGTH)
    mask = rule(torch.arange(B)[:, None, None, None], torch.arange(H)[:, None, None], i[:, None], i)
    return mask.expand(B, H, LENGTH, LENGTH)


@pytest.mark.parametrize("name", RULES)
def test_scanned_share(name: str, record_property: Callable[[str, object], None]) -> None:
    make, (B, H), ceiling = RULES[name]
    rule = make()
    analysis = analyse(rule, Grid(LENGTH, LENGTH, (BLOCK, BLOCK), B=B, H=H))
    scanned = analysis.scanned / (analysis.tiles * BLOCK * BLOCK)
    figures = (
        f"{name:28} tiles {analysis.tiles:5}  unknown {analysis.unknown / analysis.tiles:7.2%}  "
        f"sampled {analysis.sampled:6}  scanned {scanned:7.2%}  {analysis.reason or ''}"
    )
    print(figures)
    record_property("figures", figures)
    assert analysis.tiles in (TILES, TILES * B, TILES * H, TILES * B * H)
    assert scanned <= ceiling, figures
    anywhere, everywhere = tile_truth(dense(rule, B, H), (BLOCK, BLOCK))
    expected = torch.where(everywhere, FULL, torch.where(anywhere, MIXED, EMPTY)).to(torch.uint8)
    differs = analysis.states.codes.expand_as(expected) != expected
    assert not differs.any(), f"tile {differs.nonzero()[0].tolist()} is not what the dense mask says"
