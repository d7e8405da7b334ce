"""Rules written by hand, each for one way in which a tile calculus goes wrong.

The random rules find such ways; these keep them found, and the mutants of the calculus are held against them.
"""

from __future__ import annotations

from tests.tiles.rules import Case, execute

# (q_len, kv_len, block size, B, H)
Shape = tuple[int, int, tuple[int, int], int, int]
SQUARE: Shape = (32, 32, (8, 8), 1, 1)
RAGGED: Shape = (29, 37, (8, 16), 1, 1)
HEADS: Shape = (24, 24, (8, 8), 2, 3)
LARGE: Shape = (64, 64, (32, 32), 1, 1)

# name -> (grid, lines of tables, the expression returned)
RULES: dict[str, tuple[Shape, list[str], str]] = {
    # ends of intervals
    "causal": (SQUARE, [], "q_idx >= kv_idx"),
    "strictly causal": (SQUARE, [], "q_idx > kv_idx"),
    "anticausal": (RAGGED, [], "q_idx <= kv_idx"),
    "strictly anticausal": (SQUARE, [], "q_idx < kv_idx"),
    "window that ends on a block": (SQUARE, [], "(q_idx - kv_idx < 8) & (q_idx >= kv_idx)"),
    "window one wider": (SQUARE, [], "(q_idx - kv_idx <= 8) & (q_idx >= kv_idx)"),
    "difference equal to a constant": (SQUARE, [], "q_idx - kv_idx == 7"),
    "difference unequal to a constant": (SQUARE, [], "q_idx - kv_idx != -15"),
    "sum of positions": (SQUARE, [], "q_idx + kv_idx < 15"),
    "sum of positions reaches its end": (SQUARE, [], "q_idx + kv_idx >= 14"),
    "constant minus difference": (SQUARE, [], "5 - (q_idx - kv_idx) > 0"),
    "negated difference": (SQUARE, [], "-(q_idx - kv_idx) <= 7"),
    "scaled difference": (SQUARE, [], "(q_idx - kv_idx) * -3 < 24"),
    "product of positions": (SQUARE, [], "(q_idx - 9) * (kv_idx - 9) > 20"),
    "product of signs": (SQUARE, [], "(q_idx - 16) * (kv_idx - 16) >= 0"),
    "absolute difference": (SQUARE, [], "(q_idx - kv_idx).abs() >= 1"),
    "absolute difference is zero": (SQUARE, [], "(q_idx - kv_idx + 20).abs() == 0"),
    "absolute value of odd numbers": (SQUARE, [], "((q_idx - kv_idx) * 2 + 1).abs() >= 1"),
    "square of a difference": (SQUARE, [], "torch.square(q_idx - kv_idx) < 50"),
    "minimum": (SQUARE, [], "torch.minimum(q_idx, kv_idx) >= 8"),
    "maximum": (SQUARE, [], "torch.maximum(q_idx, kv_idx) < 8"),
    "larger of two": (SQUARE, [], "torch.max(q_idx, kv_idx) < 8"),
    "smaller of two": (RAGGED, [], "q_idx.min(other=kv_idx + 3) % 16 < 9"),
    "larger along an axis": (SQUARE, [], "torch.stack([q_idx, kv_idx]).max(0).values >= 20"),
    "clamped difference": (SQUARE, [], "(q_idx - kv_idx).clamp(-3, 11) == 11"),
    "clamp whose bounds cross": (SQUARE, [], "(q_idx - kv_idx).clamp(5, 2) == 2"),
    # variables used twice
    "a value less itself": (SQUARE, [], "(q_idx - kv_idx) - (q_idx - kv_idx) == 0"),
    "a mask and its opposite": (SQUARE, [], "(q_idx >= kv_idx) & (q_idx < kv_idx)"),
    "a mask or its opposite": (SQUARE, [], "(q_idx >= kv_idx) | (q_idx < kv_idx)"),
    "a mask unequal to itself": (SQUARE, [], "(q_idx >= kv_idx) ^ (q_idx >= kv_idx)"),
    "double less single": (SQUARE, [], "(2 * q_idx - kv_idx) - q_idx >= 0"),
    "two bits that exclude each other": (SQUARE, [], "((q_idx + kv_idx) % 2 == 0) & ((q_idx - kv_idx) % 2 == 1)"),
    "parity of one position, twice": (
        SQUARE,
        [],
        "((q_idx % 2 == 0) ^ (kv_idx % 2 == 0)) == ((q_idx + kv_idx) % 2 == 1)",
    ),
    # equality of values that skip integers
    "even against odd": (SQUARE, [], "2 * q_idx == 2 * kv_idx + 1"),
    "tables that never meet": (
        SQUARE,
        ["low = torch.tensor([0, 10] * 16)", "middle = torch.tensor([3, 7] * 16)"],
        "low[q_idx] == middle[kv_idx]",
    ),
    "sentinels one step apart by overflow": (
        SQUARE,
        ["far = torch.tensor([torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min] * 16)"],
        "far[q_idx] == kv_idx",
    ),
    "sentinels compared": (
        SQUARE,
        ["end = torch.where(torch.arange(32) % 3 == 0, torch.iinfo(torch.int64).max, torch.arange(32))"],
        "kv_idx < end[q_idx]",
    ),
    "sentinels in arithmetic": (
        SQUARE,
        ["end = torch.where(torch.arange(32) % 3 == 0, torch.iinfo(torch.int64).max, torch.arange(32))"],
        "kv_idx + end[q_idx] > 20",
    ),
    # division
    "chunks": (SQUARE, [], "q_idx // 12 == kv_idx // 12"),
    "floored quotient of a difference": (SQUARE, [], "(q_idx - kv_idx) // 5 == -1"),
    "truncated quotient of a difference": (SQUARE, [], "torch.div(q_idx - kv_idx, 5, rounding_mode='trunc') == 0"),
    "remainder of a difference": (SQUARE, [], "(q_idx - kv_idx) % 13 == 12"),
    "remainder in one period": (SQUARE, [], "(q_idx + kv_idx) % 64 >= 30"),
    "remainder by a negative divisor": (SQUARE, [], "(q_idx - kv_idx) % -13 == -12"),
    "fmod of a difference": (SQUARE, [], "torch.fmod(q_idx - kv_idx, 13) == -12"),
    "quotient by a negative divisor": (SQUARE, [], "(q_idx - kv_idx) // -7 >= 2"),
    "quotient by a moving divisor": (SQUARE, [], "(q_idx * 3) // (kv_idx + 1) >= 2"),
    "quotient by a moving divisor, negative": (SQUARE, [], "(-q_idx * 3) // (kv_idx + 1) >= -2"),
    "remainder by a moving divisor": (SQUARE, [], "q_idx % (kv_idx + 3) == 5"),
    "remainder by a head's divisor": (HEADS, ["step = torch.tensor([3, 5, 7])"], "(q_idx - kv_idx) % step[h] == 0"),
    "dilated window": (SQUARE, [], "((q_idx - kv_idx) % 9 == 0) & ((q_idx - kv_idx).abs() <= 18)"),
    # integers that overflow
    "overflow of int64": (SQUARE, [], "(q_idx - kv_idx) * (1 << 61) >= 0"),
    "overflow of a sum": (SQUARE, [], "q_idx * (1 << 58) + kv_idx * (1 << 58) >= 0"),
    "overflow of a square": (SQUARE, [], "torch.square((q_idx - kv_idx) * (1 << 29)) >= 0"),
    "overflow of int16": (
        SQUARE,
        ["small = torch.arange(32).to(torch.int16)"],
        "(small[q_idx] - small[kv_idx]) * 2000 >= 0",
    ),
    "overflow of int8": (SQUARE, [], "(q_idx.to(torch.int8) + 50) + (kv_idx.to(torch.int8) + 50) > 0"),
    "uint8 below zero": (SQUARE, ["small = torch.arange(32).to(torch.uint8)"], "small[q_idx] - small[kv_idx] < 16"),
    "narrowing cast": (SQUARE, [], "((q_idx - kv_idx) * 20).to(torch.int8) >= 0"),
    "wide scalar added to a narrow table": (
        SQUARE,
        ["small = torch.arange(32).to(torch.int16)", "wide = torch.tensor(70000)"],
        "(small[q_idx] - small[kv_idx]) + wide >= 4464",
    ),
    "wide scalar against a narrow table": (
        SQUARE,
        ["small = torch.arange(32).to(torch.int16)", "wide = torch.tensor(65536 + 5)"],
        "small[q_idx] - small[kv_idx] < wide",
    ),
    "Python integer against a narrow table": (
        SQUARE,
        ["small = torch.arange(32).to(torch.int8)"],
        "small[q_idx] - small[kv_idx] < 256 + 3",
    ),
    "Python integer too wide for a quotient": (HEADS, [], "q_idx.to(torch.int32) / (1 << 33) == h / 1"),
    "Python integer too wide for a moving quotient": (SQUARE, [], "(q_idx - kv_idx).to(torch.int32) / (1 << 33) == 0"),
    "left shift past the top": (SQUARE, [], "((q_idx - kv_idx) << 60) >= 0"),
    "right shift of a negative": (SQUARE, [], "((q_idx - kv_idx) >> 2) == -1"),
    "right shift of a large difference": (SQUARE, [], "((q_idx - kv_idx) >> 2) >= 4"),
    "low bits of a difference": (SQUARE, [], "((q_idx - kv_idx) & 15) == 15"),
    "bits that are no run": (SQUARE, [], "((q_idx - kv_idx) & 5) == 5"),
    "bits that are no run never make two": (SQUARE, [], "((q_idx - kv_idx) & 5) == 2"),
    "exclusive or of positions": (SQUARE, [], "(q_idx ^ kv_idx) < 6"),
    # lookups
    "relative table": (SQUARE, ["keep = torch.arange(63) % 11 == 3"], "keep[q_idx - kv_idx + 31]"),
    "relative table, negative indices wrap": (SQUARE, ["keep = torch.arange(40) % 13 == 7"], "keep[q_idx - kv_idx]"),
    "relative table, kept only by a wrapped index": (SQUARE, ["keep = torch.arange(40) == 36"], "keep[q_idx - kv_idx]"),
    "relative numbers": (SQUARE, ["weight = torch.arange(63) * 7 % 23"], "weight[q_idx - kv_idx + 31] == 22"),
    "relative numbers, negative indices wrap": (
        SQUARE,
        ["weight = torch.arange(40) * 7 % 23"],
        "weight[q_idx - kv_idx] >= 20",
    ),
    "relative numbers, always negative": (SQUARE, ["weight = torch.arange(64)"], "weight[q_idx - kv_idx - 32] < 20"),
    "one of several tables": (
        RAGGED,
        ["keep = torch.arange(2 * 29 * 37).view(2, 29, 37) > 1700"],
        "keep[1, q_idx, kv_idx]",
    ),
    "the last of several tables": (
        SQUARE,
        ["bias = torch.stack([torch.arange(63.0), -torch.arange(63.0)])"],
        "(bias[-1, q_idx - kv_idx + 31] < -40) | (bias[0, q_idx - kv_idx + 31] < 3)",
    ),
    "relative table per head": (
        HEADS,
        ["keep = torch.arange(3 * 47).view(3, 47) % 10 < 3"],
        "keep[h, q_idx - kv_idx + 23]",
    ),
    "pairs": (SQUARE, ["keep = torch.arange(32 * 32).view(32, 32) % 37 == 0"], "keep[q_idx, kv_idx]"),
    "pairs, one missing": (SQUARE, ["keep = torch.arange(32 * 32).view(32, 32) != 535"], "keep[q_idx, kv_idx]"),
    "pairs, transposed": (SQUARE, ["keep = torch.ones(32, 32).tril().bool()"], "keep[kv_idx, q_idx]"),
    "pairs on the diagonal only": (
        SQUARE,
        ["keep = ~torch.eye(32).bool()"],
        "keep[q_idx, q_idx * 0 + kv_idx] & (q_idx >= kv_idx)",
    ),
    "same index twice": (SQUARE, ["keep = torch.eye(63).bool()"], "keep[q_idx - kv_idx + 31, q_idx - kv_idx + 31]"),
    "blocks": (SQUARE, ["keep = torch.eye(6).bool()"], "keep[q_idx // 6, kv_idx // 6]"),
    "lookup of a lookup": (
        SQUARE,
        ["order = torch.arange(31, -1, -1)", "ids = torch.arange(32) // 5"],
        "ids[order[q_idx]] == ids[kv_idx]",
    ),
    "chosen keys": (
        SQUARE,
        ["chosen = torch.arange(64).view(32, 2) * 5 % 32"],
        "(chosen[q_idx] == kv_idx.unsqueeze(-1)).any(-1)",
    ),
    "membership of a difference": (
        SQUARE,
        ["steps = torch.tensor([0, 1, 4, 9, 16, 25])"],
        "torch.isin(q_idx - kv_idx, steps)",
    ),
    "membership at the end of a range": (SQUARE, ["steps = torch.tensor([15])"], "torch.isin(q_idx - kv_idx, steps)"),
    "place of a sum": (SQUARE, ["cuts = torch.tensor([3, 20, 41])"], "torch.bucketize(q_idx + kv_idx, cuts) == 2"),
    # truths
    "exclusive or": (SQUARE, [], "(q_idx >= 9) ^ (kv_idx >= 17)"),
    "where of two masks": (SQUARE, [], "torch.where(q_idx >= kv_idx, kv_idx < 9, q_idx < 9)"),
    "where that keeps all": (SQUARE, [], "torch.where(q_idx >= kv_idx, q_idx >= kv_idx, q_idx < kv_idx)"),
    "where, as a method": (SQUARE, [], "(q_idx >= 9).where(kv_idx >= q_idx, kv_idx < 9)"),
    "where of numbers": (SQUARE, [], "torch.where(q_idx >= kv_idx, q_idx, kv_idx + 40) < 36"),
    "where of numbers, as a method": (SQUARE, [], "(q_idx - kv_idx).where(kv_idx >= 9, q_idx + 40) > 30"),
    "where under a sure condition": (SQUARE, [], "torch.where(q_idx + kv_idx >= 0, q_idx - kv_idx, -1) >= 0"),
    "mask as a number": (SQUARE, [], "(q_idx >= kv_idx).int() * 2 - 1 == (q_idx - kv_idx >= 8).int()"),
    "masks added": (SQUARE, [], "(q_idx >= kv_idx) + (kv_idx < 3)"),
    "masks multiplied": (SQUARE, [], "(q_idx >= kv_idx) * (kv_idx >= 3)"),
    "masks counted": (SQUARE, [], "torch.stack([q_idx >= kv_idx, kv_idx < 9, q_idx < 9]).sum(0) >= 2"),
    "one of several": (SQUARE, [], "torch.stack([q_idx == kv_idx, kv_idx == 9, q_idx + 17 == kv_idx]).any(0)"),
    "all of several": (SQUARE, [], "torch.stack([q_idx >= kv_idx, kv_idx >= 3, q_idx - kv_idx < 12]).all(0)"),
    "unknown vector counted": (
        SQUARE,
        ["high = torch.tensor([1, 5, 9])"],
        "(((q_idx - kv_idx) ** 3).expand(3) < high).sum() >= 2",
    ),
    "difference as a truth": (SQUARE, [], "(q_idx - kv_idx).bool()"),
    "numbers as truths": (SQUARE, [], "torch.logical_xor(q_idx - kv_idx, (q_idx + kv_idx) % 2)"),
    # floating point
    "ratio": (RAGGED, [], "q_idx / 29 >= kv_idx / 37"),
    "zero over zero": (SQUARE, [], "(q_idx - kv_idx) / (q_idx - kv_idx) == 1"),
    "sign of an unknown": (SQUARE, [], "torch.sign((q_idx - kv_idx) / (kv_idx - 9)) >= 0"),
    "not a number": (
        SQUARE,
        ["weight = torch.tensor([0.5, float('nan')] * 16)"],
        "(weight[q_idx] + kv_idx < 9) | (q_idx < 3)",
    ),
    "not a number negated": (
        SQUARE,
        ["weight = torch.tensor([0.5, float('nan')] * 16)"],
        "~(weight[q_idx] * kv_idx >= 9)",
    ),
    "infinities meet and are no number": (
        SQUARE,
        ["weight = torch.tensor([1.0, float('inf')] * 16)"],
        "weight[q_idx] - weight[kv_idx] <= float('inf')",
    ),
    "quotient by a divisor that passes zero": (SQUARE, [], "20 / (q_idx - kv_idx) <= 3"),
    "infinities meet": (
        SQUARE,
        ["weight = torch.tensor([1.0, float('inf')] * 16)"],
        "weight[q_idx] - weight[kv_idx] < 1",
    ),
    "large integers in float32": (SQUARE, [], "(q_idx + (1 << 24)) * 1.0 > kv_idx + (1 << 24)"),
    "half precision": (SQUARE, [], "(q_idx.to(torch.float16) + 2048) > kv_idx + 2052"),
    # batch and head
    "window per head": (HEADS, ["window = torch.tensor([1, 8, 30])"], "(q_idx - kv_idx).abs() < window[h]"),
    "length per batch": (HEADS, ["length = torch.tensor([24, 9])"], "kv_idx < length[b]"),
    "unknown that depends on the head": (HEADS, [], "(q_idx * 37 + kv_idx * 11 + h) % 53 == 7"),
    "unknown that depends on the batch": (HEADS, [], "((q_idx ^ kv_idx) ^ b) % 5 == 1"),
    "head alone": (HEADS, [], "h == 1"),
    "batch and head alone": (HEADS, [], "b * 2 != h"),
    # what sampling may miss
    "one position kept": (SQUARE, [], "(q_idx == 13) & (kv_idx == 22)"),
    "one position dropped": (SQUARE, [], "(q_idx * 32 + kv_idx) != 13 * 32 + 22"),
    "one position kept, by an unknown": (SQUARE, [], "((q_idx ^ 13) | (kv_idx ^ 22)) == 0"),
    "one mixed part kept": (LARGE, [], "(q_idx // 4 == 1) & (kv_idx // 4 == 2) & (q_idx - kv_idx == -5)"),
    "one mixed part dropped": (LARGE, [], "~((q_idx // 4 == 1) & (kv_idx // 4 == 2) & (q_idx - kv_idx == -5))"),
    "one unknown part kept": (LARGE, [], "(q_idx // 4 == 1) & (kv_idx // 4 == 2) & ((q_idx ^ kv_idx) == 13)"),
    "one unknown part dropped": (LARGE, [], "~((q_idx // 4 == 1) & (kv_idx // 4 == 2) & ((q_idx ^ kv_idx) == 13))"),
    # grids
    "all kept, ragged": (RAGGED, [], "q_idx + kv_idx >= 0"),
    "all kept by tables, ragged": (RAGGED, ["keep = torch.ones(37).bool()"], "keep[q_idx] & keep[kv_idx]"),
    "all kept by an unknown, ragged": (RAGGED, [], "((q_idx * kv_idx) ^ 1) >= 0"),
    "none kept": (RAGGED, [], "q_idx + kv_idx < 0"),
    "queries alone": (RAGGED, [], "q_idx >= 8"),
    "keys alone": (RAGGED, [], "kv_idx < 16"),
    "one row": ((1, 40, (8, 8), 1, 1), [], "(q_idx + 20 >= kv_idx) & (kv_idx % 3 == 0)"),
    "one column": ((40, 1, (8, 8), 1, 1), [], "q_idx >= kv_idx + 11"),
    "blocks wider than the lengths": ((5, 3, (16, 16), 1, 1), [], "q_idx >= kv_idx"),
}


# rules that torch refuses, so that create_block_mask must
REFUSED: dict[str, tuple[Shape, list[str], str]] = {
    "a random operation": (SQUARE, [], "(torch.rand(()) < 0.5) | (q_idx >= kv_idx)"),
    "in place over a missing batch level": (HEADS, [], "((kv_idx >= h) & (q_idx >= kv_idx)).logical_or_(b == kv_idx)"),
    "in place over a missing query level": (SQUARE, [], "(kv_idx >= 3).logical_and_(q_idx >= kv_idx)"),
    "booleans subtracted": (SQUARE, [], "(q_idx >= kv_idx) - (kv_idx >= 3)"),
    "a number returned": (SQUARE, [], "q_idx - kv_idx"),
    "a Python truth returned": (SQUARE, [], "True"),
    "a vector returned": (SQUARE, [], "q_idx.unsqueeze(0) >= kv_idx"),
    "a Python condition": (SQUARE, [], "(q_idx >= kv_idx) and (kv_idx >= 3)"),
    "a chained comparison": (SQUARE, [], "0 <= q_idx - kv_idx < 5"),
    "a Python number read": (SQUARE, [], "[True, False][int(q_idx) % 2]"),
    "a selection of changing size": (SQUARE, ["weight = torch.arange(32)"], "weight[weight > q_idx].sum() > kv_idx"),
    "an index out of range": (SQUARE, ["short = torch.arange(5)"], "short[q_idx] >= kv_idx"),
}


def hard_case(name: str) -> Case:
    """The case of one rule, of either table."""
    every = RULES | REFUSED
    (q_len, kv_len, block_size, B, H), tables, expression = every[name]
    lines = ["import torch", *tables, "def rule(b, h, q_idx, kv_idx):", f"    return {expression}"]
    source = "\n".join(lines) + "\n"
    values, rule = execute(source, f"<{name}>")
    return Case(list(every).index(name), source, values, rule, B, H, q_len, kv_len, block_size)
