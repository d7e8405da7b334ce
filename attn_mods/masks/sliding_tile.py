"""A tile of an image or video sees the ``kernel`` tiles around it on each axis; at the edges the window moves inwards.

Rule: tokens in order of tiles; keep (i, j) iff on every axis the tile of j is in the window of the tile of i, or i is
text, or j is text. Text tokens follow the canvas.
From: Zhang et al., "Fast Video Generation with Sliding Tile Attention", section 3; FastVideo's ``flex_sta_ref.py`` was
read for the details.
Traps: tokens must be reordered tile by tile (``tile_order``); ``kernel`` counts tiles, attention-gym's counts tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks import _canvas
from attn_mods.symbols import fixed

EvenKernel = Literal["symmetric", "left"]


@dataclass(frozen=True, eq=False)
class SlidingTile(Mask):
    """Keep (i, j) iff on every axis the tile of j is in the window of the tile of i, or one of them is text.

    Args:
        canvas: Tokens by axis, (height, width) or (time, height, width); a multiple of ``tile``.
        tile: Tokens of a tile by axis.
        kernel: Tiles seen by axis, the query's own included; what exceeds the canvas sees all of the axis.
        text: Text tokens after those of the canvas, which see and are seen by everything. Combine with a mask of the
            keys if some of them are padding.
        even_kernel: Window of an even kernel. "symmetric": kernel // 2 tiles on both sides, so kernel + 1 in all
            (FastVideo). "left": kernel // 2 before and kernel // 2 - 1 after, so kernel in all (attention-gym).

    Shapes:
        kv_len is the product of ``canvas``, plus text; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Numbers of axes that differ, a size below 1, a tile that does not divide the canvas, another
            even_kernel, or (at use) keys that are not these tokens.
        TypeError: What is not a tuple of ints, a text that is not an int.

    References:
        Zhang et al. 2025, arXiv 2502.04507, section 3.
    """

    canvas: tuple[int, ...]
    tile: tuple[int, ...]
    kernel: tuple[int, ...]
    text: int = 0
    even_kernel: EvenKernel = "symmetric"

    entry = Entry(
        title="Sliding tile",
        summary="A tile of a video sees the tiles around it on each axis; text sees and is seen by everything.",
        papers=(
            Paper(
                "Fast Video Generation with Sliding Tile Attention",
                "2502.04507",
                where="section 3, and flex_sta_ref.py in the authors' FastVideo",
            ),
        ),
        models=(Model("HunyuanVideo with STA", field="window_size"),),
        tags=frozenset({"vision", "video", "local", "block"}),
        picture="""
            xxxxxx..........
            xxxxxx..........
            xxxxxx..........
            xxxxxx..........
            ..xxxxxx........
            ..xxxxxx........
            ..xxxxxx........
            ..xxxxxx........
            ........xxxxxx..
            ........xxxxxx..
            ........xxxxxx..
            ........xxxxxx..
            ..........xxxxxx
            ..........xxxxxx
            ..........xxxxxx
            ..........xxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: _case(kv_len, (1, 2), (1, 3)), ((16, 16), (5, 16))),
            "odd_kernel": Case(lambda q_len, kv_len, device: _case(kv_len, (1, 2), (3, 3))),
            "even_symmetric": Case(lambda q_len, kv_len, device: _case(kv_len, (2, 2), (2, 4))),
            "even_left": Case(lambda q_len, kv_len, device: _case(kv_len, (2, 2), (2, 4), even_kernel="left")),
            "text": Case(lambda q_len, kv_len, device: _case(kv_len, (2, 3), (3, 1), text=5)),
            "video": Case(lambda q_len, kv_len, device: _case(kv_len, (2, 2, 2), (3, 1, 2), text=3)),
            "kernel_beyond_canvas": Case(lambda q_len, kv_len, device: _case(kv_len, (2, 2), (999, 3))),
            "bench": Case(lambda q_len, kv_len, device: _case(kv_len, (4, 4, 4), (3, 3, 3))),
        },
        traps=(
            "Reorder the tokens tile by tile (tile_order) before attention, and back after it.",
            "kernel counts tiles as in FastVideo; attention-gym passes kernel * tile.",
            "An even kernel spans one tile more in FastVideo than in attention-gym: say which with even_kernel.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass one int an axis, for example (time, height, width)"
        canvas = _canvas.sizes(self.name, "canvas", self.canvas, None, remedy)
        tile = _canvas.sizes(self.name, "tile", self.tile, len(canvas), remedy)
        kernel = _canvas.sizes(self.name, "kernel", self.kernel, len(canvas), remedy)
        if any(size % part for size, part in zip(canvas, tile, strict=True)):
            got = f"tile {tile} on canvas {canvas}"
            checks.fail(self.name, "tile must divide the canvas on every axis", got, "pad the canvas")
        checks.static_integer_field(self, "text", 0, "pass the text tokens after the canvas")
        if self.even_kernel not in ("symmetric", "left"):
            remedy = 'pass "symmetric" or "left"'
            checks.fail(self.name, "even_kernel must name a form of the window", repr(self.even_kernel), remedy)
        for field, value in (("canvas", canvas), ("tile", tile), ("kernel", kernel)):
            object.__setattr__(self, field, value)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles by axis."""
        return tuple(size // part for size, part in zip(self.canvas, self.tile, strict=True))

    def _windows(self) -> list[tuple[int, int, int]]:
        """Tiles before the query's, tiles of the window, and the last tile at which a window starts, by axis."""
        windows = []
        for count, kernel in zip(self.tiles, self.kernel, strict=True):
            span = kernel + 1 if kernel % 2 == 0 and self.even_kernel == "symmetric" else kernel
            windows.append((kernel // 2, span, max(count - span, 0)))
        return windows

    def tile_order(self, device: torch.device | str | None = None) -> Tensor:
        """Raster position of each token in order of tiles, int64 [tokens of the canvas]: index q, k and v with it.

        Raises:
            ValueError: A device that cannot be used here, or that holds no values.
            TypeError: Something that is no device.
        """
        where = None if device is None else checks.usable_device(self.name, device)
        axes = len(self.canvas)
        split = [part for pair in zip(self.tiles, self.tile, strict=True) for part in pair]
        raster = torch.arange(prod(self.canvas), device=where).reshape(split)
        return raster.permute(*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)).reshape(-1)

    def mask_mod(self) -> MaskMod:
        """The rule on every axis of tiles, and text."""
        tiles = tuple(fixed(count) for count in self.tiles)
        windows = [tuple(fixed(number) for number in window) for window in self._windows()]
        tile_tokens, video = fixed(prod(self.tile)), fixed(prod(self.canvas))
        has_text = bool(self.text)

        def sliding_tile(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            visible = q_idx.new_ones((), dtype=torch.bool)
            q, kv = _canvas.coordinates(q_idx // tile_tokens, tiles), _canvas.coordinates(kv_idx // tile_tokens, tiles)
            for q_tile, kv_tile, (before, span, last_first) in zip(q, kv, windows, strict=True):
                first = (q_tile - before).clamp(0, last_first)
                visible = visible & (first <= kv_tile) & (kv_tile < first + span)
            return visible | (q_idx >= video) | (kv_idx >= video) if has_text else visible

        return sliding_tile

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Rows of ones on each axis of tiles, spread over the tokens of the tiles, bool [q_len, kv_len]."""
        tables = []
        for count, (before, span, _) in zip(self.tiles, self._windows(), strict=True):
            table = torch.zeros(count, count, dtype=torch.bool)
            for tile in range(count):
                start = sorted((0, tile - before, max(count - span, 0)))[1]
                table[tile, start : start + span] = True
            tables.append(table)
        tokens = torch.ones(prod(self.tile), prod(self.tile), dtype=torch.bool)
        video = _canvas.outer_product([*tables, tokens])
        return torch.nn.functional.pad(video, (0, self.text, 0, self.text), value=True)[:q_len, :kv_len]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The keys are the tokens of the canvas and the text."""
        total = prod(self.canvas) + self.text
        _canvas.check_total(self.name, total, q_end, kv_end, "pass canvas and text of kv_len tokens together")


def _case(
    length: int, tile: tuple[int, ...], kernel: tuple[int, ...], text: int = 0, even_kernel: EvenKernel = "symmetric"
) -> SlidingTile:
    if length < prod(tile) + text:
        tile, text = (1,) * len(tile), 0
    text += (length - text) % prod(tile)
    height, width = _canvas.near_square((length - text) // prod(tile))
    tiles = (height, width) if len(tile) == 2 else (height, *_canvas.near_square(width))
    canvas = tuple(count * size for count, size in zip(tiles, tile, strict=True))
    return SlidingTile(canvas, tile, kernel, text, even_kernel)
