"""Pictures of masks and scores made of characters."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods.mask import Mask, Offset
from attn_mods.score import Score
from attn_mods.tiles import EMPTY, FULL, MIXED
from attn_mods.work import exact_states

COLUMNS = 64
TOKENS_SHOWN = 32
HIDDEN, SOME, ALL = "·", "▒", "█"
SHADES = " ░▒▓█"
ASCII = str.maketrans({HIDDEN: ".", SOME: "+", ALL: "#", "░": ".", "▓": "*", "→": ">", "↓": "v"})


def draw_tokens(visible: Tensor) -> str:
    """One mark a pair: a line a query, two characters a key.

    Args:
        visible: bool [q_len, kv_len].
    """
    every = 1 if visible.shape[1] <= 10 else 5
    header = "    " + "".join(f"{j:<{2 * every}}" for j in range(0, visible.shape[1], every)) + " key j"
    marks = ["".join(ALL * 2 if mark else HIDDEN + " " for mark in row).rstrip() for row in visible.tolist()]
    lines = [f"{i:>3} {row}" for i, row in enumerate(marks)]
    return "\n".join([header, *lines])


def draw_overview(mask: Mask, q_len: int, kv_len: int, q_offset: Offset | None = None) -> str:
    """The whole mask at batch 0 and head 0, however long: a character for many pairs, drawn from tile states.

    Args:
        mask: The mask.
        q_len: Number of queries.
        kv_len: Number of keys.
        q_offset: Absolute position of the first query.

    Returns:
        At most 64 columns and 32 lines (a character is about twice as high as wide): hidden, some, all visible.
    """
    keys = -(-max(q_len, kv_len) // COLUMNS)
    codes = exact_states(mask.place(q_len, kv_len, q_offset), q_len, kv_len, (2 * keys, keys))[0, 0].tolist()
    marks = {EMPTY: HIDDEN, MIXED: SOME, FULL: ALL}
    return "\n".join("".join(marks[code] for code in row) for row in codes)


def overview_scale(q_len: int, kv_len: int) -> tuple[int, int]:
    """How many (queries, keys) one character of ``draw_overview`` stands for."""
    keys = -(-max(q_len, kv_len) // COLUMNS)
    return 2 * keys, keys


def score_map(score: Score, start: float, q_len: int, kv_len: int) -> Tensor:
    """What the score makes of one and the same score at every pair, float64 [q_len, kv_len], batch 0 and head 0."""
    batch, heads = score.batch_and_heads()
    device = score.device
    scores = torch.full((batch, heads, q_len, kv_len), start, dtype=torch.float64, device=device)
    with torch.no_grad():
        i, j = torch.arange(q_len, device=device), torch.arange(kv_len, device=device)
        return score.dense(scores, i, j)[0, 0].cpu()


def draw_heat(values: Tensor) -> str:
    """A matrix in shades from its smallest value (blank) to its largest (solid), two characters a value."""
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    steps = ((values - low) / (high - low or 1.0) * (len(SHADES) - 1)).nan_to_num(0, len(SHADES) - 1, 0)
    levels = steps.round().clamp(0, len(SHADES) - 1).long().tolist()
    return "\n".join("".join(SHADES[level] * 2 for level in row) for row in levels)
