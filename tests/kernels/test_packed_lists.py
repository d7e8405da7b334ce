"""Lists from packed codes by the kernel, against those from a plane of codes by torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attn_mods.fused import Planes, kernels, lists, lists_of_planes
from attn_mods.fused.compiled import Background, functions_of
from attn_mods.kernels import packed_lists
from attn_mods.kernels.lists import block_lists
from attn_mods.tiles import EMPTY, FULL, MIXED, Grid
from tests.fused.comparison import assert_same_lists

pytestmark = pytest.mark.usefixtures("interpreter")

BLOCK = (16, 16)

# B, H, rows, columns
SHAPES = [(1, 1, 1, 1), (1, 1, 3, 13), (2, 1, 5, 4), (1, 3, 2, 3), (2, 2, 4, 1)]


def codes_of(shape: tuple[int, ...], shares: tuple[float, float, float], seed: int = 0) -> Tensor:
    """Random codes: so many EMPTY, FULL and MIXED tiles."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.multinomial(torch.tensor(shares), torch.Size(shape).numel(), replacement=True, generator=generator)
    return flat.view(shape).to(torch.uint8)


def packed(codes: Tensor) -> Planes:
    """Codes as kernels leave them: four a byte, by rows and by columns."""
    B, H, rows, columns = codes.shape
    along, down = _bytes(codes), _bytes(codes.transpose(-2, -1))
    both = torch.cat([along.flatten(), down.flatten()])
    return Planes(both, along.shape[-1], down.shape[-1], along.numel(), rows, columns, B, H)


def _bytes(codes: Tensor) -> Tensor:
    fours = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 4)).unflatten(-1, (-1, 4))
    return (fours << torch.arange(0, 8, 2, dtype=torch.uint8)).sum(-1).to(torch.uint8)


def grid_of(codes: Tensor, B: int | None = None, H: int | None = None) -> Grid:
    own_batch, own_heads, rows, columns = codes.shape
    return Grid(rows * BLOCK[0], columns * BLOCK[1], BLOCK, B or own_batch, H or own_heads)


def lists_by_torch(codes: Tensor, grid: Grid, separate_full_blocks: bool) -> list[Tensor]:
    expected: list[Tensor] = []
    for code in (MIXED, FULL) if separate_full_blocks else (MIXED,):
        for plane in (codes, codes.transpose(-2, -1)):
            counts, indices = block_lists(plane, code)
            expected += [counts.expand(grid.B, grid.H, -1), indices.expand(grid.B, grid.H, -1, -1)]
    return expected


def lists_by_kernel(codes: Tensor, grid: Grid, separate_full_blocks: bool, compact: bool) -> list[Tensor]:
    arguments = packed(codes), grid, separate_full_blocks, compact
    made = lists_of_planes(*arguments)
    if made is None:
        kernels.finish()
        made = lists_of_planes(*arguments)
    assert made is not None
    return made


def check(codes: Tensor, grid: Grid, separate_full_blocks: bool = True, compact: bool = False) -> list[Tensor]:
    got = lists_by_kernel(codes, grid, separate_full_blocks, compact)
    what = f"{tuple(codes.shape)}, separate {separate_full_blocks}, compact {compact}"
    assert_same_lists(got, lists_by_torch(codes, grid, separate_full_blocks), what, compact)
    return got


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lists_are_those_of_torch(shape: tuple[int, ...], compact: bool) -> None:
    codes = codes_of(shape, (0.4, 0.3, 0.3))
    check(codes, grid_of(codes), True, compact)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("shares", [(1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0), (0, 0.5, 0.5)], ids=str)
def test_lines_of_one_kind(shares: tuple[float, float, float], compact: bool) -> None:
    codes = codes_of((1, 1, 2, 5), shares)
    check(codes, grid_of(codes), True, compact)


@pytest.mark.parametrize("compact", [False, True])
def test_partial_lists_alone(compact: bool) -> None:
    codes = codes_of((2, 1, 3, 7), (0.5, 0, 0.5))
    check(codes, grid_of(codes), False, compact)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("sizes", [(3, 1), (1, 2), (3, 2)], ids=str)
def test_lists_that_batches_and_heads_share(sizes: tuple[int, int], compact: bool) -> None:
    codes = codes_of((1, 1, 3, 5), (0.4, 0.3, 0.3))
    lists = check(codes, grid_of(codes, *sizes), True, compact)
    for each in lists:
        assert each.shape[:2] == sizes
        assert all(stride == 0 for stride, size in zip(each.stride()[:2], sizes, strict=True) if size > 1)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("columns", [4, 5, 8, 9, 21])
def test_lines_longer_than_what_a_program_reads_at_once(
    columns: int, compact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of one byte, of two, and of more, which are read two at once."""
    monkeypatch.setattr(lists, "_BYTES", (1, 2))
    codes = codes_of((1, 1, 2, columns), (0.3, 0.3, 0.4))
    check(codes, grid_of(codes), True, compact)


def test_compact_lists_are_as_wide_as_the_longest_of_their_side() -> None:
    codes = torch.zeros(1, 2, 4, 12, dtype=torch.uint8)
    codes[0, 0, 1, 3:8] = MIXED
    codes[0, 1, 2, :2] = FULL
    codes[0, 1, 3, 11] = FULL
    row_counts, rows, column_counts, columns, *full = check(codes, grid_of(codes), True, True)
    assert (int(row_counts.max()), int(full[0].max())) == (5, 2)
    assert (int(column_counts.max()), int(full[2].max())) == (1, 1)
    assert rows.stride() == full[1].stride() == (2 * 4 * 5, 4 * 5, 5, 1)
    assert columns.stride() == full[3].stride() == (2 * 12, 12, 1, 1)


def test_whole_storage_of_compact_lists_holds_tiles() -> None:
    """A kernel may read one entry behind what a list counts; it must be the number of a tile."""
    codes = codes_of((1, 2, 3, 9), (0.8, 0.1, 0.1), seed=4)
    made = check(codes, grid_of(codes), True, True)
    for indices in made[1::2]:
        width, lines = indices.stride(-2), torch.Size(indices.shape[:3]).numel()
        stored = indices.as_strided((lines * width,), (1,))
        assert width < indices.shape[-1]
        assert int(stored.min()) >= 0 and int(stored.max()) < indices.shape[-1]


def test_last_line_of_compact_lists_can_be_read_to_its_end() -> None:
    codes = torch.zeros(1, 1, 3, 9, dtype=torch.uint8)
    codes[0, 0, :, 4] = MIXED
    for indices in check(codes, grid_of(codes), True, True)[1::2]:
        last = indices.storage_offset() + sum(
            (size - 1) * stride for size, stride in zip(indices.shape, indices.stride(), strict=True)
        )
        assert last < indices.untyped_storage().nbytes() // indices.element_size()
        assert indices.clone().shape == indices.shape


MUTANTS = {
    "partial and full tiles swapped": (
        "return (packed >> 1) & 85, packed & 85",
        "return packed & 85, (packed >> 1) & 85",
    ),
    "four tiles counted as none": ("(pairs + (pairs >> 4)) & 7", "(pairs + (pairs >> 4)) & 3"),
    "rank off by one": ("tl.cumsum(of_byte, 0) - of_byte", "tl.cumsum(of_byte, 0)"),
    "other tiles in their own places": ("count + tile - before", "tile"),
    "tiles of a byte in one place": ("before += chosen.to(tl.int32)", "before += 0"),
    "partial tiles ranked anew in each part": ("partial_before += both & 65535", "partial_before += 0"),
    "full tiles ranked anew in each part": ("full_before += both >> 16", "full_before += 0"),
    "last part left out": ("while first < line_bytes:", "while first + 2 < line_bytes:"),
    "lists as wide as the longest partial one": ("tl.maximum(partial, full)", "partial"),
    "counts of partial tiles for full ones": ("tl.store(full_count, full)", "tl.store(full_count, partial)"),
}


def mutable_codes() -> Tensor:
    """Codes whose last row and last column list nothing: what goes one place too far is still inside of the list."""
    codes = codes_of((1, 1, 4, 11), (0.1, 0.6, 0.3), seed=3)
    codes[:, :, -1] = codes[..., -1] = EMPTY
    codes[0, 0, 0, :5] = FULL
    codes[0, 0, 1, :5] = MIXED
    return codes


def lists_are_right(text: str, compact: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a kernel of this text fills the lists as torch does."""
    background = Background()
    monkeypatch.setattr(lists, "kernels", background)
    monkeypatch.setattr(lists, "_BYTES", (1, 2))
    monkeypatch.setattr(packed_lists, "fill_lists", functions_of(text, f"<lists {id(background)}>")["fill_lists"])
    codes = mutable_codes()
    grid = grid_of(codes)
    assert lists_of_planes(packed(codes), grid, True, compact) is None
    background.finish()
    got = lists_of_planes(packed(codes), grid, True, compact)
    assert got is not None
    try:
        assert_same_lists(got, lists_by_torch(codes, grid, True), "lists", compact)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = MUTANTS[name]
    text = Path(packed_lists.__file__).read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in the kernel: write this mutant anew"
    assert not lists_are_right(text.replace(old, new), name.startswith("lists as wide"), monkeypatch)


@pytest.mark.parametrize("compact", [False, True])
def test_the_kernel_itself_is_no_mutant(compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lists_are_right(Path(packed_lists.__file__).read_text(encoding="utf-8"), compact, monkeypatch)
