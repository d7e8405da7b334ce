"""Compact lists: the lists of a BlockMask stored only as wide as the longest of them.

torch's lists take 16 bytes a tile, a gibibyte at a million tokens. Kernels read of each line only as many entries as it
counts, so that a view of the full shape whose lines lie closer together serves as well. That is not documented: it is
used on GPUs alone, from a size on, and of itself only with torches on which the kernels were seen to give the same
bits. Lists of partial and of full tiles must have one width; with two torch 2.11 computes garbage and says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attn_mods import checks
from attn_mods.block_mask import build_block_mask
from attn_mods.fused import located
from attn_mods.tiles import Grid

PROVEN = ("2.11",)
"""Releases of torch for which the tests under tests/gpu found both forms to give the same bits."""

FROM_BYTES = 1 << 28
"""Size of full-width lists from which on compact ones are made where they are proven."""

_LENGTH, _WINDOW = 1500, 300


def are_wanted(name: str, compact: bool | None, grid: Grid) -> bool:
    """Whether the lists of a grid are to be compact.

    Args:
        name: Whose name errors bear.
        compact: What the user asked for; None leaves it to size, device and torch.
        grid: The tiles.

    Raises:
        ValueError: Compact lists on a device that has none.
        RuntimeError: Compact lists with a torch whose kernels do not give the same bits.
        TypeError: Something else than True, False or None.
    """
    device = torch.device(grid.device)
    if compact is None:
        return device.type == "cuda" and full_bytes(grid) >= FROM_BYTES and _is_proven()
    check_switch(name, compact)
    if not compact:
        return False
    if device.type != "cuda":
        remedy = "leave compact out, or move the mask to a GPU"
        checks.fail(name, "compact lists are for CUDA devices", device, remedy)
    if not _is_proven() and not same_bits(located(device)):
        rule = "compact lists need kernels that give the same bits as with lists of full width"
        checks.fail(name, rule, f"torch {torch.__version__}", "leave compact out", RuntimeError)
    return True


def check_switch(name: str, compact: object) -> None:
    """Check that ``compact`` is True, False or None."""
    if compact is not None:
        checks.boolean(name, "compact", compact, "leave it out for what suits the size")


def full_bytes(grid: Grid) -> int:
    """Bytes of the indices of full width, of all batches and heads a rule may depend on."""
    return 16 * grid.B * grid.H * grid.rows * grid.columns


def _is_proven() -> bool:
    return torch.__version__.startswith(tuple(f"{version}." for version in PROVEN))


@functools.cache
def same_bits(device: torch.device) -> bool:
    """Whether compiled flex_attention gives the same output and gradients, bit for bit, with both forms of lists.

    Compiles a kernel, which takes seconds, once a process and device.
    """

    def window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx - kv_idx < _WINDOW)

    grid = Grid(_LENGTH, _LENGTH, (128, 128), 1, 1, device)
    generator = torch.Generator(device).manual_seed(0)
    options = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    compiled = torch.compile(flex_attention, fullgraph=True)
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [torch.randn(1, 2, _LENGTH, 64, **options) for _ in range(3)]  # type: ignore[call-overload]
        results = [_results(compiled, tensors, build_block_mask(window, grid, compact=form)) for form in (False, True)]
    return all(torch.equal(full, short) for full, short in zip(*results, strict=True))


def _results(compiled: Any, tensors: Sequence[Tensor], block_mask: BlockMask) -> list[Tensor]:
    """Output and gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = compiled(*leaves, block_mask=block_mask)
    out.sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]
