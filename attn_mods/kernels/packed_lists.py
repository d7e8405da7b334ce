"""Block lists from packed codes: partial and full lists, by rows and by columns, in one launch, without a sort.

Compact lists take two launches: one counts, one writes.

A *line* is a row of tiles, or a column of them. Its codes lie four to a byte in a plane; its lists are how many of its
tiles have a code, and which, in ascending order. What follows in a list are the other tiles, in ascending order too, as
a stable sort would leave them.
"""

import triton
import triton.language as tl


@triton.jit
def _split(packed):
    """Of bytes of codes the partial and the full ones: a bit 0, 2, 4 or 6 each. No tile has code 3 any more."""
    return (packed >> 1) & 85, packed & 85


@triton.jit
def _count(bits):
    """How many of the bits 0, 2, 4 and 6 are set."""
    pairs = (bits & 17) + ((bits >> 2) & 17)
    return (pairs + (pairs >> 4)) & 7


@triton.jit
def _write(out, bits, before, count, byte, length, WITH_OTHERS: tl.constexpr):
    """The tiles of each byte to their places.

    Args:
        out: The list.
        bits: Which tiles of each byte it has, bits 0, 2, 4, 6.
        before: How many it has before each byte.
        count: How many it has.
        byte: Numbers of the bytes.
        length: Tiles of the line.
        WITH_OTHERS: Whether the other tiles follow.
    """
    for place in tl.static_range(4):
        tile = (byte * 4 + place).to(tl.int32)
        chosen = ((bits >> (2 * place)) & 1) != 0
        if WITH_OTHERS:
            tl.store(out + tl.where(chosen, before, count + tile - before), tile, mask=tile < length)
        else:
            tl.store(out + before, tile, mask=chosen)
        before += chosen.to(tl.int32)


@triton.jit
def _write_tail(out, first, byte, count, width):
    """The number 0 to the places behind those that count, as many as there are tiles in bytes from ``first`` on."""
    if first * 4 < width:
        for place in tl.static_range(4):
            tile = (byte * 4 + place).to(tl.int32)
            tl.store(out + tile, tl.zeros_like(tile), mask=(tile >= count) & (tile < width))


@triton.jit
def fill_lists(
    planes,
    row_counts,
    row_indices,
    row_full_counts,
    row_full_indices,
    column_counts,
    column_indices,
    column_full_counts,
    column_full_indices,
    widest,
    lines,
    row_length,
    column_length,
    row_bytes,
    column_bytes,
    column_plane,
    row_width,
    column_width,
    PHASE: tl.constexpr,
    SEPARATE: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Fill the lists of one line.

    Args:
        planes: uint8; the codes by rows, and from ``column_plane`` on those by columns.
        row_counts: int32; how many partial tiles each row has.
        row_indices: int32; which, ``row_width`` entries a row.
        row_full_counts: The same of full tiles.
        row_full_indices: The same of full tiles.
        column_counts: The same four by columns.
        column_indices: See row_indices.
        column_full_counts: See row_full_counts.
        column_full_indices: See row_full_indices.
        widest: int32 [2]; the longest list by rows and by columns, if they are counted only.
        lines: Lines by rows; the others are by columns.
        row_length: Tiles of a row.
        column_length: Tiles of a column.
        row_bytes: Bytes of a row's codes.
        column_bytes: Bytes of a column's codes.
        column_plane: Where the codes by columns begin.
        row_width: Entries stored of each list by rows.
        column_width: Entries stored of each list by columns.
        PHASE: 0 to count and write lists of full width, 1 to count, 2 to write lists of less than full width.
        SEPARATE: Whether full tiles have lists of their own; if not, codes hold no full tile.
        BYTES: Bytes read at once, a power of two.
    """
    program = tl.program_id(0).to(tl.int64)
    by_rows = program < lines
    if by_rows:
        line = program
        start = planes + line * row_bytes
        line_bytes = row_bytes
        length = row_length
        width = row_width
        partial_count = row_counts + line
        full_count = row_full_counts + line
        partial_list = row_indices + line * width
        full_list = row_full_indices + line * width
    else:
        line = program - lines
        start = planes + column_plane + line * column_bytes
        line_bytes = column_bytes
        length = column_length
        width = column_width
        partial_count = column_counts + line
        full_count = column_full_counts + line
        partial_list = column_indices + line * width
        full_list = column_full_indices + line * width
    if PHASE == 2:
        partial = tl.load(partial_count)
        full = partial
        if SEPARATE:
            full = tl.load(full_count)
    else:
        partials = tl.zeros([BYTES], tl.int32)
        fulls = partials
        first = tl.full((), 0, tl.int64)
        while first < line_bytes:
            byte = first + tl.arange(0, BYTES)
            partial_bits, full_bits = _split(tl.load(start + byte, mask=byte < line_bytes, other=0).to(tl.int32))
            partials += _count(partial_bits)
            fulls += _count(full_bits)
            first += BYTES
        partial = tl.sum(partials)
        full = tl.sum(fulls)
        tl.store(partial_count, partial)
        if SEPARATE:
            tl.store(full_count, full)
    if PHASE == 1:
        tl.atomic_max(widest + tl.where(by_rows, 0, 1), tl.maximum(partial, full))
    else:
        partial_before = tl.full((), 0, tl.int32)
        full_before = partial_before
        first = tl.full((), 0, tl.int64)
        while first < line_bytes:
            byte = first + tl.arange(0, BYTES)
            packed = tl.load(start + byte, mask=byte < line_bytes, other=0).to(tl.int32)
            partial_bits, full_bits = _split(packed)
            if PHASE == 2:
                _write_tail(partial_list, first, byte, partial, width)
                if SEPARATE:
                    _write_tail(full_list, first, byte, full, width)
            if (PHASE == 0) | (tl.max(packed) > 0):
                # One running sum of both counts, partial ones in the low half: at most 4 * BYTES, so 16 bits suffice.
                of_byte = _count(partial_bits) + (_count(full_bits) << 16)
                before = tl.cumsum(of_byte, 0) - of_byte
                partial_place = partial_before + (before & 65535)
                _write(partial_list, partial_bits, partial_place, partial, byte, length, PHASE == 0)
                if SEPARATE:
                    full_place = full_before + (before >> 16)
                    _write(full_list, full_bits, full_place, full, byte, length, PHASE == 0)
                both = tl.sum(of_byte)
                partial_before += both & 65535
                full_before += both >> 16
            first += BYTES
