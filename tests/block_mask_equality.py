"""What the tests mean by "the same BlockMask" and by "a true tile state", with messages that name the first difference.

Two truths, neither of them ours: ``dense_truth`` evaluates a rule at every position by torch's own nested vmap, and
``assert_same_block_mask`` compares with what eager ``torch.nn.attention.flex_attention.create_block_mask`` returned.
Only the valid part of an index row is compared (the first ``count`` entries): what stands behind it is never read by a
kernel, and torch itself does not promise it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from attn_mods.tiles import EMPTY, FULL, MIXED, UNKNOWN, Grid, States

# count list -> index list, in the order in which a difference is reported
LISTS = {
    "kv_num_blocks": "kv_indices",
    "full_kv_num_blocks": "full_kv_indices",
    "q_num_blocks": "q_indices",
    "full_q_num_blocks": "full_q_indices",
}
# present in torch 2.13, absent in 2.11: compared where the installed torch has them. tensor -> its count list
WRITE_ORDERS = {"dq_write_order": "q_num_blocks", "dq_write_order_full": "full_q_num_blocks"}
OPTIONAL_VALUES = ("dq_kv_order", "dq_kv_order_spt")


def dense_truth(rule: Callable[..., Tensor], B: int | None, H: int | None, q_len: int, kv_len: int) -> Tensor:
    """Evaluate ``rule`` at every position, as torch's ``create_mask`` does: bool ``[B, H, q_len, kv_len]``.

    The index transform belongs to the truth: without it ``table[b][0]`` and ``table[q_idx]`` mean something else.
    """
    nested = rule
    for axis in (3, 2, 1, 0):
        in_dims = tuple(0 if position == axis else None for position in range(4))
        nested = torch.vmap(nested, in_dims=in_dims)
    positions = (torch.arange(1 if length is None else length) for length in (B, H, q_len, kv_len))
    with TransformGetItemToIndex():
        return nested(*positions)


def tile_truth(truth: Tensor, block_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(any real position kept, every real position kept) of each tile: bool ``[B, H, rows, columns]`` both."""
    anywhere = _tiles(truth, block_size, filler=False).flatten(-2).any(-1)
    everywhere = _tiles(truth, block_size, filler=True).flatten(-2).all(-1)
    return anywhere, everywhere


def assert_sound(states: States, truth: Tensor, grid: Grid) -> None:
    """Raise AssertionError, naming the first tile, unless every claim of ``states`` holds at the real positions.

    A tile is FULL or MIXED by its real positions only: that a ragged tile cannot be a full block is the business of
    the lists, not of the states.
    """
    anywhere, everywhere = tile_truth(truth, grid.block_size)
    codes = states.codes
    _same("codes.dtype", codes.dtype, torch.uint8)
    if codes.dim() != 4 or any(
        size not in (1, full) for size, full in zip(codes.shape[:2], truth.shape[:2], strict=True)
    ):
        raise AssertionError(f"codes.shape: got {tuple(codes.shape)}, expected [B|1, H|1, rows, columns]")
    _same("codes.shape[2:]", tuple(codes.shape[2:]), tuple(anywhere.shape[2:]))
    codes = codes.expand(anywhere.shape)
    true_claims = {
        "EMPTY": (EMPTY, ~anywhere),
        "FULL": (FULL, everywhere),
        "MIXED": (MIXED, anywhere & ~everywhere),
        "UNKNOWN": (UNKNOWN, torch.ones_like(anywhere)),
    }
    known = torch.zeros_like(anywhere)
    for name, (code, holds) in true_claims.items():
        claimed = codes == code
        known |= claimed
        if (claimed & ~holds).any():
            tile = tuple((claimed & ~holds).nonzero()[0].tolist())
            kept = "some" if anywhere[tile] and not everywhere[tile] else "all" if everywhere[tile] else "none"
            raise AssertionError(
                f"tile {list(tile)} [batch, head, row, column] is called {name}, but {kept} of it is kept"
            )
    if not known.all():
        raise AssertionError(f"codes outside EMPTY, FULL, MIXED, UNKNOWN: {codes[~known].unique().tolist()}")


def _tiles(truth: Tensor, block_size: tuple[int, int], filler: bool) -> Tensor:
    """``[B, H, rows, columns, q_block, kv_block]``; positions past the end hold ``filler``."""
    B, H, q_len, kv_len = truth.shape
    q_block, kv_block = block_size
    rows, columns = -(-q_len // q_block), -(-kv_len // kv_block)
    padded = truth.new_full((B, H, rows * q_block, columns * kv_block), filler)
    padded[:, :, :q_len, :kv_len] = truth
    return padded.view(B, H, rows, q_block, columns, kv_block).transpose(3, 4)


def assert_same_block_mask(got: Any, expected: Any, *, expected_is_well_formed: bool = False) -> None:
    """Raise AssertionError, with the first list, row and values that differ, unless ``got`` is torch's BlockMask.

    Lists that equal well formed ones are well formed; else it is looked at.
    """
    _same("type", type(got).__name__, type(expected).__name__)
    _same("BLOCK_SIZE", tuple(got.BLOCK_SIZE), tuple(expected.BLOCK_SIZE))
    _same("seq_lengths", tuple(got.seq_lengths), tuple(expected.seq_lengths))
    if got.mask_mod is not expected.mask_mod:
        raise AssertionError(f"mask_mod: got {got.mask_mod!r}, expected the very object {expected.mask_mod!r}")
    columns = {"kv": _blocks(expected, axis=1), "q": _blocks(expected, axis=0)}
    for count_name, index_name in LISTS.items():
        side = "q" if count_name.removeprefix("full_").startswith("q") else "kv"
        _assert_same_list(got, expected, count_name, index_name)
        if getattr(got, index_name) is not None and not expected_is_well_formed:
            assert_well_formed(index_name, getattr(got, count_name), getattr(got, index_name), columns[side])
    for name, count_name in WRITE_ORDERS.items():
        if hasattr(expected, name):
            counts = getattr(expected, count_name)
            _assert_same_rows(name, counts, getattr(got, name, None), getattr(expected, name))
    for name in OPTIONAL_VALUES:
        if hasattr(expected, name):
            _same(name, getattr(got, name, None), getattr(expected, name))
    _same("shape", tuple(got.shape), tuple(expected.shape))


def _blocks(block_mask: Any, axis: int) -> int:
    return -(-block_mask.seq_lengths[axis] // block_mask.BLOCK_SIZE[axis])


def _assert_same_list(got: Any, expected: Any, count_name: str, index_name: str) -> None:
    counts, indices = getattr(got, count_name), getattr(got, index_name)
    _assert_same_tensor(count_name, counts, getattr(expected, count_name))
    _assert_same_rows(index_name, counts, indices, getattr(expected, index_name))


def _assert_same_rows(name: str, counts: Tensor | None, got: Tensor | None, expected: Tensor | None) -> None:
    if got is None or expected is None or counts is None:
        _same(name, _presence(got), _presence(expected))
        return
    _assert_same_kind(name, got, expected)
    valid = torch.arange(got.shape[-1], device=got.device) < counts[..., None]
    differs = valid & (got != expected)
    if differs.any():
        row = tuple(differs.any(-1).nonzero()[0].tolist())
        count = int(counts[row])
        raise AssertionError(
            f"{name}{list(row)}: got {got[row][:count].tolist()}, expected {expected[row][:count].tolist()}"
        )


def assert_well_formed(name: str, counts: Tensor, indices: Tensor, block_count: int) -> None:
    """Every valid index lies in ``[0, block_count)``, and each row ascends strictly (so it has no duplicates)."""
    valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    broken = {
        f"an index outside [0, {block_count})": valid & ((indices < 0) | (indices >= block_count)),
        "indices that do not ascend strictly": valid[..., 1:] & (indices[..., 1:] <= indices[..., :-1]),
    }
    if (counts > indices.shape[-1]).any() or (counts < 0).any():
        raise AssertionError(f"{name}: counts {counts.unique().tolist()} do not fit rows of {indices.shape[-1]}")
    for what, where in broken.items():
        if where.any():
            row = tuple(where.any(-1).nonzero()[0].tolist())
            raise AssertionError(f"{name}{list(row)} has {what}: {indices[row][: int(counts[row])].tolist()}")


def _assert_same_tensor(name: str, got: Tensor | None, expected: Tensor | None) -> None:
    if got is None or expected is None:
        _same(name, _presence(got), _presence(expected))
        return
    _assert_same_kind(name, got, expected)
    differs = got != expected
    if differs.any():
        row = tuple(differs.nonzero()[0].tolist())
        raise AssertionError(
            f"{name}{list(row)}: got {int(got[row])}, expected {int(expected[row])} "
            f"({int(differs.sum())} of {differs.numel()} entries differ)"
        )


def _assert_same_kind(name: str, got: Tensor, expected: Tensor) -> None:
    _same(f"{name}.dtype", got.dtype, expected.dtype)
    _same(f"{name}.device", got.device, expected.device)
    _same(f"{name}.shape", tuple(got.shape), tuple(expected.shape))


def _presence(value: Tensor | None) -> str:
    return "None" if value is None else "a tensor"


def _same(name: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise AssertionError(f"{name}: got {got}, expected {expected}")
