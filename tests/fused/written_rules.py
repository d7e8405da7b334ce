"""Rules written by hand, each for one way in which generated kernels go wrong; all fit ``GRID``."""

from __future__ import annotations

import torch

from attn_mods.tiles import Grid
from attn_mods.tiles.rule import Rule
from tests.tiles.hard_rules import RULES as HARD_RULES

LENGTH = 64
LONGEST = 400
LARGEST, SMALLEST = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min


def grid(device: str) -> Grid:
    """Ragged both ways, two batches and three heads, positions within ``LENGTH``."""
    return Grid(45, 40, (16, 12), B=2, H=3, device=device)


def grids(device: str) -> list[Grid]:
    """Ragged and whole, of unequal lengths and blocks, moved, and with batches and heads; positions below LONGEST."""
    return [
        Grid(45, 45, (16, 16), device=device),
        Grid(30, 70, (16, 16), q_offset=40, device=device),
        Grid(70, 30, (8, 16), q_offset=5, kv_offset=11, device=device),
        Grid(41, 43, (12, 7), B=2, H=2, device=device),
        Grid(33, 21, (1, 24), device=device),
        Grid(1, 90, (16, 16), q_offset=89, device=device),
        Grid(90, 1, (16, 16), device=device),
        Grid(5, 3, (128, 128), H=3, device=device),
    ]


def documents(device: str) -> Rule:
    """A rule with leaves, a number of the head, and tiles that no claim decides."""
    ids = torch.arange(LONGEST, device=device) // 17
    return lambda b, h, q, k: (ids[q] == ids[k]) & (q - k < 20) & ((q + k * h) % 5 != 3)


def written_rules(device: str) -> dict[str, Rule]:
    """Rules for which kernels are generated, by name; their tables are on the device."""
    return {
        **_arithmetic(),
        **_division(),
        **_truths(device),
        **_bits(),
        **_narrow_integers(device),
        **_lookups(device),
        **_sentinels(device),
        **_constants(device),
    }


def _arithmetic() -> dict[str, Rule]:
    return {
        "clamp by position": lambda b, h, q, k: (q - k).clamp(-2, 4) == 4,
        "clamp by name, upper end first": lambda b, h, q, k: torch.clamp(q - k, max=4, min=-2) == 4,
        "clamp from above": lambda b, h, q, k: ((q * k) % 13).clamp(max=5) > 3,
        "clamp from below": lambda b, h, q, k: ((q * k) % 13).clamp(5, None) > 6,
        "clamp whose ends cross": lambda b, h, q, k: (q - k).clamp(5, 2) + (q * k) % 13 < 9,
        "clamp between positions": lambda b, h, q, k: torch.clamp(q - k, k, q) > 6,
        "clamp_min and clamp_max": lambda b, h, q, k: torch.clamp_min(q - 30, 2) > torch.clamp_max(k, 20),
        "number minus difference": lambda b, h, q, k: 5 - (q - k) > 0,
        "absolute values": lambda b, h, q, k: (q - 30).abs() < (k - 30).abs(),
        "signs": lambda b, h, q, k: torch.sign(q - k) == torch.sign(k - 20),
        "square of a difference": lambda b, h, q, k: (q - k) ** 2 < 30,
        "squares of positions": lambda b, h, q, k: (q - 30) ** 2 < torch.square(k - 10),
        "square by name": lambda b, h, q, k: torch.pow(q - k, exponent=2) < 30,
        "relu": lambda b, h, q, k: torch.relu(q - k) > torch.relu(k - 30),
        "rounding of integers": lambda b, h, q, k: torch.round(q - k) > torch.floor(k) - torch.ceil(q),
        "negatives": lambda b, h, q, k: -q >= -k,
        "minima and maxima": lambda b, h, q, k: torch.maximum(torch.minimum(q, k), torch.minimum(k, q - 9)) > 10,
        "product of positions": lambda b, h, q, k: (q - 9) * (k - 9) > 20,
        "copies": lambda b, h, q, k: (+q).clone() >= +k,
        "a value that no interval knows": lambda b, h, q, k: (q * k) % 13 == 5,
        "one position kept": lambda b, h, q, k: (q == 43) & (k == 22),
        "one position dropped": lambda b, h, q, k: (q * 64 + k) != 43 * 64 + 22,
        "one position kept in the last tile": lambda b, h, q, k: ((q ^ 44) | (k ^ 39)) == 0,
        "kept behind the end alone": lambda b, h, q, k: (q >= 45) | (k >= 40),
        "dropped behind the end alone": lambda b, h, q, k: (q < 45) & (k < 40),
        "mixed of a head": lambda b, h, q, k: (q - k) < h * 9,
        "unknown of a head and a batch": lambda b, h, q, k: ((q * 37 + k * 11 + h + 5 * b) % 53 == 7) & (q + k < 9),
        "batch alone": lambda b, h, q, k: b == 1,
        "head and query": lambda b, h, q, k: q < h * 20,
        "batch and key": lambda b, h, q, k: k < b * 20 + 3,
    }


def _division() -> dict[str, Rule]:
    return {
        "quotient rounded down": lambda b, h, q, k: (q - k) // 5 == -1,
        "quotient of positions": lambda b, h, q, k: (q - 30) // 7 == (k - 30) // -7,
        "remainder": lambda b, h, q, k: (q - k) % 4 == 1,
        "remainder by a negative": lambda b, h, q, k: (q - 30) % 7 == (k - 30) % -7,
        "fmod": lambda b, h, q, k: torch.fmod(q - k, 5) == -2,
        "fmod of positions": lambda b, h, q, k: torch.fmod(q - 30, 7) == torch.fmod(k - 30, -7),
        "divisor that moves": lambda b, h, q, k: 100 // (k + 1) > q,
        "divisor of both positions": lambda b, h, q, k: 100 // (q + k + 1) > 3,
        "divisor that moves, negative": lambda b, h, q, k: (q - 50) // (k - 64) > 0,
        "remainder by a moving divisor": lambda b, h, q, k: (q - 50) % (k - 64) < -20,
        "number modulo a position": lambda b, h, q, k: 100 % (k + 1) > q,
    }


def _truths(device: str) -> dict[str, Rule]:
    flags = torch.arange(LENGTH, device=device) % 3 == 0
    yes, no = torch.tensor(True, device=device), torch.tensor(False, device=device)
    return {
        "equal truths": lambda b, h, q, k: (q >= 20) == (k >= 10),
        "ordered truths": lambda b, h, q, k: ((q >= 20) < (k >= 10)) | ((q >= 40) >= (k >= 30)),
        "truth compared with True": lambda b, h, q, k: (q >= k) == True,  # noqa: E712
        "truth compared with 1": lambda b, h, q, k: (q >= k) == 1,
        "truth plus a number": lambda b, h, q, k: ((q >= k) + 1) > 1,
        "truths added and multiplied": lambda b, h, q, k: (q >= k) + (q > 9) * (k > 9),
        "truth times a number": lambda b, h, q, k: ((q >= k) * 5) > 3,
        "truth as a negative number": lambda b, h, q, k: -((q >= k).int()) < 0,
        "truth squared": lambda b, h, q, k: torch.pow(q >= k, 2) < 1,
        "where of truths": lambda b, h, q, k: torch.where(q >= k, k > 3, q < 30),
        "where of Python's truths": lambda b, h, q, k: torch.where(q >= k, True, False),
        "where of a truth and a number": lambda b, h, q, k: torch.where(q >= k, True, k) > 4,
        "where of numbers": lambda b, h, q, k: torch.where(q >= k, 1, 0) == 1,
        "where, as a method": lambda b, h, q, k: (q - k).where(k >= 9, q + 40) > 30,
        "exclusive or": lambda b, h, q, k: (q >= 9) ^ (k >= 17),
        "numbers as truths": lambda b, h, q, k: torch.logical_xor(q - k, k % 3),
        "numbers as truths, negated": lambda b, h, q, k: torch.logical_not(q - k) | torch.logical_and(q, k % 5),
        "cast to a truth": lambda b, h, q, k: (q % 5).bool() & ((q - k) % 3).bool(),
        "table of truths": lambda b, h, q, k: flags[q] & flags[k],
        "table of truths, negated": lambda b, h, q, k: ~flags[q] | (q >= k),
        "tables of truths compared": lambda b, h, q, k: flags[q] >= flags[k],
        "tables of truths counted": lambda b, h, q, k: flags[q].long() + flags[k].long() == 1,
        "table of truths times a number": lambda b, h, q, k: flags[q] * 5 + k > 9,
        "captured truth": lambda b, h, q, k: (q >= k) & yes,
        "captured untruth": lambda b, h, q, k: (q >= k) | no,
        "captured truth alone": lambda b, h, q, k: yes & (b >= 0),
    }


def _bits() -> dict[str, Rule]:
    return {
        "and of integers": lambda b, h, q, k: ((q & k) & 3) == 1,
        "low bits of a difference": lambda b, h, q, k: ((q - k) & 15) == 15,
        "bits that are no run": lambda b, h, q, k: ((q - k) & 5) == 5,
        "and with a negative": lambda b, h, q, k: ((q - 30) & -4) == ((k - 30) & -4),
        "exclusive or with a negative": lambda b, h, q, k: ((q ^ -1) + k) < 0,
        "complement": lambda b, h, q, k: (~q + k) < 0,
        "or of a number and a position": lambda b, h, q, k: (q | 8) == (k | 8),
        "left shift": lambda b, h, q, k: (q << 2) > k,
        "left shift past the top": lambda b, h, q, k: ((q - k) << 60) >= 0,
        "left shift of a number": lambda b, h, q, k: (1 << (k % 8)) > q,
        "right shift of a negative": lambda b, h, q, k: ((q - 30) >> 2) >= ((k - 30) >> 2),
        "right shift of a difference": lambda b, h, q, k: ((q - k) >> 2) == -1,
        "shifts beyond the width": lambda b, h, q, k: ((q - 30) << 70) + ((q - 30) >> 70) < k - 30,
        "shifts that move beyond the width": lambda b, h, q, k: ((q - 30) << (k + 40)) + ((q - 30) >> (k + 40)) >= 0,
        "shifts by a negative": lambda b, h, q, k: ((q - 30) << -1) + ((q - 30) >> -1) < k - 30,
    }


def _narrow_integers(device: str) -> dict[str, Rule]:
    positions = torch.arange(LENGTH, device=device)
    int8, uint8 = (positions - 20).to(torch.int8), (positions * 4).to(torch.uint8)
    int16, int32 = positions.to(torch.int16), (positions * 100).to(torch.int32)
    five = torch.tensor(5, dtype=torch.int32, device=device)
    ends = torch.where(positions % 3 == 0, 2**31 - 1, positions).to(torch.int32)
    return {
        "int8": lambda b, h, q, k: int8[q] < k,
        "uint8": lambda b, h, q, k: uint8[q] < k * 3,
        "uint8 against int8": lambda b, h, q, k: uint8[q] < int8[k],
        "int16 against int8": lambda b, h, q, k: int16[q] < int8[k],
        "int16 against numbers": lambda b, h, q, k: (int16[q] < 20) & (int16[k] >= 3),
        "smaller of int8": lambda b, h, q, k: torch.minimum(int8[q], int8[k]) < 5,
        "smaller of int8 and uint8": lambda b, h, q, k: torch.minimum(int8[q], uint8[k]) < 5,
        "larger of int32 and int64": lambda b, h, q, k: torch.maximum(int32[q], k) > 700,
        "int32 arithmetic": lambda b, h, q, k: int32[q] - int32[k] < 700,
        "int32 and a number": lambda b, h, q, k: int32[q] - 1000 > k,
        "int32 and a captured int32": lambda b, h, q, k: int32[q] + five > k,
        "int32 that overflows": lambda b, h, q, k: int32[q] * int32[q] * int32[q] < k,
        "int32 that overflows jointly": lambda b, h, q, k: int32[q] * int32[k] * int32[k] < k,
        "int32 sums beyond what is assumed": lambda b, h, q, k: int32[q] * 5_000_000 + int32[k] > 0,
        "int32 sentinels": lambda b, h, q, k: k < ends[q],
        "int32 sentinels in arithmetic": lambda b, h, q, k: ends[q] + k.int() > 20,
        "int32 sentinels in int64": lambda b, h, q, k: ends[q] + k > 20,
        "int32 shifted": lambda b, h, q, k: (int32[q] << 30) >= k,
        "int32 divided": lambda b, h, q, k: (int32[q] - 3000) // 70 >= (int32[k] - 3000) % -70,
        "cast to int32": lambda b, h, q, k: ((q - k) * (1 << 30)).to(torch.int32) >= 0,
        "cast to int8": lambda b, h, q, k: (q * 9).to(torch.int8) > k,
        "cast to uint8": lambda b, h, q, k: (q * 9 - 100).to(dtype=torch.uint8) > k,
    }


def _lookups(device: str) -> dict[str, Rule]:
    positions = torch.arange(LENGTH, device=device)
    order, documents, pairs = positions.flip(0), positions // 17, positions.repeat(2).view(2, LENGTH) * 5 % 23
    heads = torch.tensor([3, 5, 7], device=device)
    per_batch = torch.tensor([[4, 9, 20], [1, 40, 60]], device=device, dtype=torch.int32)
    steps = torch.arange(7, device=device).repeat(3)[: 3 * 5].view(3, 5)
    five = torch.tensor(5, device=device)
    return {
        "documents": lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k),
        "negative indices": lambda b, h, q, k: order[q - 30] > order[k - LENGTH],
        "lookup of a lookup": lambda b, h, q, k: documents[order[q]] == documents[order[order[k]]],
        "index of a truth": lambda b, h, q, k: order[(q >= 9).long()] > k,
        "index of int32": lambda b, h, q, k: documents[order[q].int()] >= documents[k.int() // 2],
        "index of a quotient": lambda b, h, q, k: order[q // 3] >= order[k % 7],
        "constant index": lambda b, h, q, k: pairs[1][q] > pairs[0, k],
        "captured index": lambda b, h, q, k: pairs[five - 5, q] > pairs[1, k],
        "index of a head": lambda b, h, q, k: (q - k).abs() < heads[h],
        "index of a group of heads": lambda b, h, q, k: (q - k).abs() < heads[h // 2],
        "index of the head after": lambda b, h, q, k: (q - k < heads[(h + 1) % 3]) & (order[q % 7] < k),
        "indices of a batch and a head": lambda b, h, q, k: k < per_batch[b, h],
        "indices of a batch, a head and a query": lambda b, h, q, k: k < per_batch[b, h] + pairs[b, q],
        "step of a head": lambda b, h, q, k: ((q - k) % heads[h] == 0) & (q - k < 3) & (k - q < 3),
        "index of a head and of a quotient": lambda b, h, q, k: steps[h, q // 15] * 8 > k,
        "transposed table": lambda b, h, q, k: pairs.T[q, 0] >= pairs.T[k, 1],
        "expanded table": lambda b, h, q, k: five.expand(LENGTH)[q] >= k,
        "captured number": lambda b, h, q, k: q - k < five,
        "captured number divides": lambda b, h, q, k: (q % five == 0) & (k // five <= q // five),
        "captured number in arithmetic": lambda b, h, q, k: (q - k) * five > five + five,
    }


def _sentinels(device: str) -> dict[str, Rule]:
    positions = torch.arange(LENGTH, device=device)
    upper = torch.where(positions % 3 == 0, LARGEST, positions)
    lower = torch.where(positions % 3 == 0, SMALLEST, positions)
    far = torch.tensor([2**62, -(2**62)] * (LENGTH // 2), device=device)
    return {
        "sentinel compared": lambda b, h, q, k: k < upper[q],
        "sentinels compared": lambda b, h, q, k: lower[k] < upper[q],
        "sentinels equal": lambda b, h, q, k: upper[q] == lower[k],
        "sentinel in arithmetic": lambda b, h, q, k: k + upper[q] > 20,
        "sentinel in arithmetic of one position": lambda b, h, q, k: (upper[q] + 1) > k,
        "sentinels subtracted": lambda b, h, q, k: upper[q] - lower[k] > 20,
        "absolute value of a sentinel": lambda b, h, q, k: lower[k].abs() < q,
        "where of sentinels": lambda b, h, q, k: torch.where(q > k, upper[q], lower[k]) > 5,
        "smaller of a sentinel": lambda b, h, q, k: torch.minimum(upper[q], k) > 5,
        "large numbers added": lambda b, h, q, k: far[q] + far[k] > 0,
        "largest number": lambda b, h, q, k: q - k < LARGEST,
        "smallest number": lambda b, h, q, k: q - k > SMALLEST,
        "largest number added": lambda b, h, q, k: (q - k) + LARGEST > 0,
        "two to the 31": lambda b, h, q, k: (q - k) * (1 << 31) < (1 << 33),
        "one below two to the 31": lambda b, h, q, k: (q - k) * ((1 << 31) - 1) < (1 << 33),
        "minus two to the 31": lambda b, h, q, k: (q - k) * -(1 << 31) < (1 << 33),
        "products that leave int64": lambda b, h, q, k: (q - k) * (1 << 61) >= 0,
    }


def _constants(device: str) -> dict[str, Rule]:
    return {
        "new_ones": lambda b, h, q, k: q.new_ones(()) * 5 > k,
        "new_ones of truths alone": lambda b, h, q, k: q.new_ones((), dtype=torch.bool),
        "full_like": lambda b, h, q, k: torch.full_like(q, 7) > k,
        "zeros_like of truths": lambda b, h, q, k: torch.zeros_like(q, dtype=torch.bool) | (q >= k),
        "all kept": lambda b, h, q, k: q + k >= 0,
        "none kept": lambda b, h, q, k: q + k < 0,
        "all kept, by an unknown": lambda b, h, q, k: ((q * k) ^ 1) >= 0,
        "queries alone": lambda b, h, q, k: q >= 8,
        "keys alone": lambda b, h, q, k: k < 16,
    }


def unfit_rules(device: str) -> dict[str, Rule]:
    """Rules for which no kernel is generated, by what it would need."""
    positions = torch.arange(LENGTH, device=device)
    int8, int16 = positions.to(torch.int8), positions.to(torch.int16)
    flags, pairs = positions % 3 == 0, positions.repeat(LENGTH).view(LENGTH, LENGTH)
    steps, weights = torch.tensor([0, 3, 50], device=device), torch.linspace(-2, 3, LENGTH, device=device)
    return {
        "a lookup at a difference": lambda b, h, q, k: flags[q - k],
        "a lookup at both positions": lambda b, h, q, k: pairs[q, k] > 3,
        "floating point": lambda b, h, q, k: q / 3 > k,
        "a table of floating point": lambda b, h, q, k: weights[q] > weights[k],
        "a floating-point number": lambda b, h, q, k: q > k + 0.5,
        "trailing axes": lambda b, h, q, k: torch.stack([q >= k, k < 9]).any(0),
        "membership": lambda b, h, q, k: torch.isin(q - k, steps),
        "a number too wide for its table": lambda b, h, q, k: (int8[q] < 300) & (q >= k),
        "int16 arithmetic": lambda b, h, q, k: int16[q] - int16[k] < 9,
        "int8 arithmetic": lambda b, h, q, k: (q - k).to(torch.int8) + 100 < 0,
        "a quotient by rounding mode": lambda b, h, q, k: torch.div(q - k, 5, rounding_mode="floor") == 0,
        "a quotient rounded to zero": lambda b, h, q, k: torch.div(q - k, 5, rounding_mode="trunc") == 0,
        "a cube": lambda b, h, q, k: (q - 30) ** 3 < k,
        "a power of a position": lambda b, h, q, k: 2 ** (q % 5) < k,
        "a scaled sum": lambda b, h, q, k: torch.add(q, k, alpha=2) < 60,
        "a clamp with None before a number": lambda b, h, q, k: (q * k % 13).clamp(None, 5) > 3,
        "an operand by name": lambda b, h, q, k: torch.lt(q, other=k) | torch.logical_and(q >= k, other=k > 3),
        "smaller of truths": lambda b, h, q, k: torch.minimum(q >= k, k > 3),
    }


# No kernel computes these. What is looked up at both positions, floating point, trailing axes, narrow arithmetic.
HARD_WITHOUT_KERNELS = {
    "Python integer against a narrow table",
    "Python integer too wide for a moving quotient",
    "Python integer too wide for a quotient",
    "all of several",
    "blocks",
    "chosen keys",
    "half precision",
    "infinities meet",
    "infinities meet and are no number",
    "large integers in float32",
    "larger along an axis",
    "masks counted",
    "membership at the end of a range",
    "membership of a difference",
    "not a number",
    "not a number negated",
    "one of several",
    "one of several tables",
    "overflow of int16",
    "overflow of int8",
    "pairs",
    "pairs on the diagonal only",
    "pairs, one missing",
    "pairs, transposed",
    "place of a sum",
    "quotient by a divisor that passes zero",
    "ratio",
    "relative numbers",
    "relative numbers, always negative",
    "relative numbers, negative indices wrap",
    "relative table",
    "relative table per head",
    "relative table, kept only by a wrapped index",
    "relative table, negative indices wrap",
    "same index twice",
    "sign of an unknown",
    "the last of several tables",
    "truncated quotient of a difference",
    "uint8 below zero",
    "unknown vector counted",
    "wide scalar added to a narrow table",
    "wide scalar against a narrow table",
    "zero over zero",
}
HARD_WITH_KERNELS = [name for name in HARD_RULES if name not in HARD_WITHOUT_KERNELS]
