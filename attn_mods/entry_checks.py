"""Checks of what an entry says of itself: picture, rule, dense form and blocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import listed_blocks
from attn_mods.entry import Entry
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask
from attn_mods.score import Score

Outcome = Literal["ok", "wrong", "unsupported"]
"""How a check ended. "unsupported" is a backend that says it does not compute this."""

BLOCK_SIZES = ((128, 128), (32, 64))
LARGEST_SCORE_ERROR = 1e-5


@dataclass(frozen=True)
class Row:
    """One check of one case."""

    case: str
    check: str
    outcome: Outcome
    detail: str = ""


def picture_of(entry: Entry) -> Tensor:
    """The hand-drawn picture as a bool matrix."""
    lines = entry.picture.split()
    return torch.tensor([[mark == "x" for mark in line] for line in lines])


def check_picture(entry: Entry, device: str = "cpu") -> Row:
    """The hand-drawn picture equals the dense form of the case "tiny" at batch 0 and head 0."""
    picture = picture_of(entry)
    q_len, kv_len = picture.shape
    dense = entry.cases["tiny"].make(q_len, kv_len, device).dense(q_len, kv_len)
    while dense.ndim > 2:
        dense = dense[0]
    different = (dense.cpu() != picture).nonzero().tolist()
    detail = f"differs at (i, j) = {tuple(different[0])}" if different else ""
    return Row(f"tiny {q_len}x{kv_len}", "picture", "wrong" if different else "ok", detail)


def check_mask(where: str, mask: Mask, q_len: int, kv_len: int) -> Iterator[Row]:
    """The rule equals the dense form, and so do the blocks at several block sizes."""
    placed = mask.place(q_len, kv_len, None if q_len == kv_len else 0)
    dense = dense_of(placed, q_len, kv_len)
    ruled = rule_matrix(placed, q_len, kv_len, dense.device)
    yield _compare(where, "rule = dense", ruled, dense)
    for block_size in BLOCK_SIZES:
        block_mask = placed.placed_block_mask(q_len, kv_len, device=dense.device, block_size=block_size)
        check = f"blocks of {block_size[0]}x{block_size[1]} = dense"
        try:
            expanded = expand(block_mask, ruled)
        except ValueError as error:
            yield Row(where, check, "wrong", str(error))
        else:
            yield _compare(where, check, expanded, dense)


def check_score(where: str, score: Score, q_len: int, kv_len: int, device: str) -> Row:
    """The rule equals the dense form on random scores, relative to the norm of the dense form."""
    batch, heads = score.batch_and_heads()
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, heads, q_len, kv_len, generator=generator, dtype=torch.float64).to(device)
    i, j = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
    with torch.no_grad():
        dense = score.dense(scores, i, j)
        b, h = torch.arange(batch, device=device), torch.arange(heads, device=device)
        ruled = evaluate_everywhere(score.score_mod(), b, h, i, j, scores)
    error = float((ruled - dense).norm() / dense.norm())
    # a NaN is not <= anything, so it is wrong
    return Row(
        where, "rule = dense", "ok" if error <= LARGEST_SCORE_ERROR else "wrong", f"relative difference {error:.1e}"
    )


def rule_matrix(mask: Mask, q_len: int, kv_len: int, device: torch.device) -> Tensor:
    """The rule at every position, bool [B, H, q_len, kv_len]."""
    batch, heads = mask.batch_and_heads()
    axes = (torch.arange(n, device=device) for n in (batch, heads, q_len, kv_len))
    return evaluate_everywhere(mask.mask_mod(), *axes)


def dense_of(mask: Mask, q_len: int, kv_len: int) -> Tensor:
    """The dense form of every sample and head, bool [B, H, q_len, kv_len]."""
    dense = mask.dense(q_len, kv_len)
    while dense.ndim < 4:
        dense = dense[None]
    return dense.expand(*mask.batch_and_heads(), *dense.shape[-2:])


def expand(block_mask: BlockMask, ruled: Tensor) -> Tensor:
    """What a kernel shows: pairs of full blocks, and of partial blocks where the rule holds; bool like ``ruled``.

    Raises:
        ValueError: A list is out of range, not ascending, or disagrees with its transpose.
    """
    partial = _block_matrix(block_mask.kv_num_blocks, block_mask.kv_indices, "kv_indices")
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _block_matrix(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, "full_kv_indices")
    by_columns = [(block_mask.q_num_blocks, block_mask.q_indices, "q_indices", partial)]
    if block_mask.full_q_num_blocks is not None:
        by_columns.append((block_mask.full_q_num_blocks, block_mask.full_q_indices, "full_q_indices", full))
    for counts, indices, label, rows in by_columns:
        if not torch.equal(_block_matrix(counts, indices, label).transpose(-2, -1), rows):
            raise ValueError(f"{label} is not the transpose of the lists by rows")
    q_len, kv_len = ruled.shape[-2:]
    return (_to_tokens(partial, block_mask, q_len, kv_len) & ruled) | _to_tokens(full, block_mask, q_len, kv_len)


def _block_matrix(counts: Tensor | None, indices: Tensor | None, label: str) -> Tensor:
    if counts is None or indices is None:
        raise ValueError(f"{label} is missing")
    columns = indices.shape[-1]
    valid = torch.arange(columns, device=indices.device) < counts[..., None]
    listed = torch.where(valid, indices, columns).long()
    if bool((valid & ((indices < 0) | (indices >= columns))).any()):
        raise ValueError(f"{label} names a block that does not exist")
    if bool((valid[..., 1:] & (listed.diff(dim=-1) <= 0)).any()):
        raise ValueError(f"{label} is not ascending")
    return listed_blocks(counts, indices)


def _to_tokens(blocks: Tensor, block_mask: BlockMask, q_len: int, kv_len: int) -> Tensor:
    q_size, kv_size = block_mask.BLOCK_SIZE
    return blocks.repeat_interleave(q_size, -2).repeat_interleave(kv_size, -1)[..., :q_len, :kv_len]


def _compare(where: str, check: str, got: Tensor, expected: Tensor) -> Row:
    if got.shape != expected.shape:
        return Row(where, check, "wrong", f"shapes {tuple(got.shape)} and {tuple(expected.shape)}")
    different = (got != expected).nonzero().tolist()
    detail = f"differs at (b, h, i, j) = {tuple(different[0])}" if different else ""
    return Row(where, check, "wrong" if different else "ok", detail)
