"""A token of an image sees the ``kernel`` tokens around it on each axis; at the edges the window moves inwards.

Rule: tokens in raster order; keep (i, j) iff on every axis the coordinate of j is in the window of that of i. A window
holds kernel tokens of the same residue modulo dilation: kernel // 2 before its centre, the rest from the centre on,
moved inside the canvas. A causal axis sees its own and the kernel - 1 tokens before. With a stride, groups of stride
tokens share the window of their middle token (on a causal axis that of their last, cut off after the query).
From: Hassani et al. (2204.07143, 2209.15001, 2403.04690, 2504.16922); NATTEN's ``get_na_flex_mask`` was read for the
details: even kernels, stride groups, and clamping inside each dilation residue.
Traps: windows do not shrink at the edges; axes are (height, width), and mixing them up only shows on images not square.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks import _canvas
from attn_mods.tiles import Grid, States


@dataclass(frozen=True, eq=False)
class Neighborhood(Mask):
    """Keep (i, j) iff on every axis j is in the window of i, of ``kernel`` tokens and moved inside the canvas.

    Args:
        canvas: Tokens by axis, for example (height, width); one to three axes, the last one fastest in memory.
        kernel: Tokens seen by axis, the query's own included; kernel * dilation <= canvas.
        dilation: Distance of neighbouring tokens of a window by axis, >= 1; None = 1 everywhere.
        causal: Whether an axis sees no later token, by axis; None = nowhere.
        stride: Tokens that share a window by axis, 1 <= stride <= kernel; None = 1 everywhere.

    Shapes:
        kv_len is the product of ``canvas``; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Numbers of axes that differ, a size below 1, kernel * dilation > canvas, stride > kernel, or (at
            use) keys that are not the tokens of the canvas.
        TypeError: What is not a tuple of ints (for causal, of bools).

    References:
        Hassani et al. 2022, arXiv 2204.07143, section 3; Hassani et al. 2025, arXiv 2504.16922, section 3.
    """

    canvas: tuple[int, ...]
    kernel: tuple[int, ...]
    dilation: tuple[int, ...] | None = None
    causal: tuple[bool, ...] | None = None
    stride: tuple[int, ...] | None = None

    entry = Entry(
        title="Neighborhood",
        summary="A token of an image sees the nearest kernel tokens on each axis.",
        papers=(
            Paper("Neighborhood Attention Transformer", "2204.07143", where="section 3"),
            Paper("Dilated Neighborhood Attention Transformer", "2209.15001", where="section 3, dilation"),
            Paper("Faster Neighborhood Attention", "2403.04690", where="causal axes"),
            Paper("Generalized Neighborhood Attention", "2504.16922", where="section 3, stride and even kernels"),
        ),
        models=(Model("NAT", field="kernel_size"), Model("DiNAT", field="dilations")),
        tags=frozenset({"vision", "video", "local"}),
        picture="""
            xxx.xxx.xxx.....
            xxx.xxx.xxx.....
            .xxx.xxx.xxx....
            .xxx.xxx.xxx....
            xxx.xxx.xxx.....
            xxx.xxx.xxx.....
            .xxx.xxx.xxx....
            .xxx.xxx.xxx....
            ....xxx.xxx.xxx.
            ....xxx.xxx.xxx.
            .....xxx.xxx.xxx
            .....xxx.xxx.xxx
            ....xxx.xxx.xxx.
            ....xxx.xxx.xxx.
            .....xxx.xxx.xxx
            .....xxx.xxx.xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(3, 3)), ((16, 16), (5, 16))),
            "odd_kernel": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(5, 3))),
            "even_kernel": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(2, 4))),
            "dilated": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(2, 3), dilation=(2, 3))),
            "causal_height": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(3, 4), causal=(True, False))),
            "strided": Case(lambda q_len, kv_len, device: _case(kv_len, (3, 5), (1, 2), (True, False), stride=(2, 3))),
            "even_stride": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(3, 4), stride=(2, 2))),
            "video": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(2, 2, 3), causal=(True, False, False))),
            "bench": Case(lambda q_len, kv_len, device: _case(kv_len, kernel=(13, 13))),
        },
        traps=(
            "At an edge the window moves inwards and keeps its size; it does not shrink.",
            "attention-gym takes (width, height) and shows kernel + 1 tokens for even kernels; NATTEN shows kernel.",
            "An even kernel sees kernel // 2 tokens before the query and kernel // 2 - 1 after it.",
        ),
    )

    def __post_init__(self) -> None:
        name, remedy = self.name, "pass one int an axis, for example (height, width)"
        canvas = _canvas.sizes(name, "canvas", self.canvas, None, remedy)
        axes = len(canvas)
        kernel = _canvas.sizes(name, "kernel", self.kernel, axes, remedy)
        ones = (1,) * axes
        dilation = _canvas.sizes(name, "dilation", ones if self.dilation is None else self.dilation, axes, remedy)
        stride = _canvas.sizes(name, "stride", ones if self.stride is None else self.stride, axes, remedy)
        causal = (False,) * axes if self.causal is None else self.causal
        if not isinstance(causal, (tuple, list)) or not all(isinstance(flag, bool) for flag in causal):
            checks.fail(name, "causal must be a tuple of bools", causal, "say True or False for each axis", TypeError)
        if len(causal) != axes:
            checks.fail(name, f"causal must have {axes} axes as the canvas has", causal, "say True or False for each")
        if any(k * d > size for k, d, size in zip(kernel, dilation, canvas, strict=True)):
            got = f"kernel {kernel} and dilation {dilation} on canvas {canvas}"
            checks.fail(name, "kernel * dilation must fit the canvas on every axis", got, "make the kernel smaller")
        if any(s > k for s, k in zip(stride, kernel, strict=True)):
            got = f"stride {stride} and kernel {kernel}"
            checks.fail(name, "stride must be <= kernel on every axis", got, "make the stride smaller")
        for field, value in (("canvas", canvas), ("kernel", kernel), ("dilation", dilation), ("stride", stride)):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "causal", tuple(causal))

    def _axes(self) -> list[tuple[int, int, int, int, bool]]:
        dilation, stride, causal = self.dilation or (), self.stride or (), self.causal or ()
        return list(zip(self.canvas, self.kernel, dilation, stride, causal, strict=True))

    def mask_mod(self) -> MaskMod:
        """The rule on every axis."""
        canvas, windows = self.canvas, self._axes()

        def neighborhood(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            visible = q_idx.new_ones((), dtype=torch.bool)
            q, kv = _canvas.coordinates(q_idx, canvas), _canvas.coordinates(kv_idx, canvas)
            for q_coordinate, kv_coordinate, window in zip(q, kv, windows, strict=True):
                visible = visible & _sees(q_coordinate, kv_coordinate, *window)
            return visible

        return neighborhood

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The windows listed token by token on each axis, bool [q_len, kv_len]."""
        return _canvas.outer_product([_windows(*axis) for axis in self._axes()])[:q_len, :kv_len]

    def tile_states(self, grid: Grid) -> States:
        """Exact, by counting the visible pairs of each tile; the calculus is loose where a tile spans image rows."""
        if max(self.canvas) > _canvas.LONGEST_AXIS:
            return super().tile_states(grid)
        positions = [torch.arange(size, device=grid.device) for size in self.canvas]
        tables = [_sees(p[:, None], p, *axis) for p, axis in zip(positions, self._axes(), strict=True)]
        return _canvas.states_of_product(tables, grid)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The keys are the tokens of the canvas."""
        _canvas.check_total(self.name, prod(self.canvas), q_end, kv_end, "pass a canvas of kv_len tokens")


def _sees(q: Tensor, kv: Tensor, size: int, kernel: int, dilation: int, stride: int, causal: bool) -> Tensor:
    residue, row, kv_row = q % dilation, q // dilation, kv // dilation
    last = (size - 1 - residue) // dilation
    leader = torch.minimum(row // stride * stride + (stride - 1 if causal else stride // 2), last)
    same_residue = kv % dilation == residue
    if causal:
        return same_residue & (kv_row <= row) & (leader - kv_row < kernel)
    first = torch.minimum((leader - kernel // 2).clamp(min=0), last + 1 - kernel)
    if kernel % 2:  # one comparison, not two: the calculus then sees that a tile is mixed, and no kernel has to look
        return same_residue & ((kv_row - (first + kernel // 2)).abs() <= kernel // 2)
    return same_residue & (first <= kv_row) & (kv_row < first + kernel)


def _windows(size: int, kernel: int, dilation: int, stride: int, causal: bool) -> Tensor:
    table = torch.zeros(size, size, dtype=torch.bool)
    for residue in range(dilation):
        tokens = list(range(residue, size, dilation))
        for group in range(0, len(tokens), stride):
            members = range(group, min(group + stride, len(tokens)))
            centre = min(group + stride // 2, len(tokens) - 1)
            start = members[-1] - kernel + 1 if causal else sorted((0, centre - kernel // 2, len(tokens) - kernel))[1]
            for member in members:
                window = tokens[max(start, 0) : member + 1 if causal else start + kernel]
                table[tokens[member], window] = True
    return table


def _case(
    tokens: int,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    causal: tuple[bool, ...] | None = None,
    stride: tuple[int, ...] | None = None,
) -> Neighborhood:
    height, width = _canvas.near_square(tokens)
    canvas = (height, width) if len(kernel) == 2 else (height, *_canvas.near_square(width))
    steps = tuple(min(step, size) for step, size in zip(dilation or (1, 1, 1), canvas, strict=False))
    fitting = tuple(min(k, size // step) for k, size, step in zip(kernel, canvas, steps, strict=True))
    strides = tuple(min(s, k) for s, k in zip(stride or (1, 1, 1), fitting, strict=False))
    return Neighborhood(canvas, fitting, steps, causal, strides)
