"""Structure facts: what holds for the block lists of a Band whatever q, k and v are, told by its ints alone.

Query i of a Band keeps exactly the keys max(0, i - left) .. min(kv_len - 1, i + right). Both ends move on with i, so a
row of blocks lists consecutive blocks, of which consecutive ones are full. The columns are the rows of the Band that is
mirrored on its diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from attn_mods.band import Band

MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Facts:
    """What holds for the lists of one Band at one pair of lengths; each is computed when it is first asked for.

    Args:
        left: Of the Band.
        right: Of the Band.
        q_len: Number of queries.
        kv_len: Number of keys.
        block_size: (query tokens, key tokens) of a block.
        separate_full_blocks: Whether full blocks have lists of their own.
    """

    left: int | None
    right: int | None
    q_len: int
    kv_len: int
    block_size: tuple[int, int]
    separate_full_blocks: bool

    @cached_property
    def rows_are_safe(self) -> bool:
        """Whether each query keeps the first key that is read for it.

        Read first is the first partial block of its row of blocks, or the first full one if no block is partial. It is
        not enough that a query keeps some key: where the first tile hides all from it, a kernel that does not expect
        that subtracts -inf from -inf.
        """
        return all(self._keep_first_key(row) for row in self._rows())

    @cached_property
    def rows_are_contiguous(self) -> bool:
        """Whether in each row of blocks the partial ones are consecutive, and the full ones too."""
        return all(row.is_contiguous() for row in self._rows())

    @cached_property
    def columns_are_contiguous(self) -> bool:
        """The same for each column of blocks, whose lists only a backward pass reads."""
        lengths, block_size = (self.kv_len, self.q_len), (self.block_size[1], self.block_size[0])
        return Facts(self.right, self.left, *lengths, block_size, self.separate_full_blocks).rows_are_contiguous

    def _rows(self) -> Iterator[_Row]:
        q_block, kv_block = self.block_size
        for first in range(0, self.q_len, q_block):
            last = min(first + q_block, self.q_len) - 1
            some = self._keys(first, last)
            listed = range(some.start // kv_block, -(-some.stop // kv_block)) if some else range(0)
            # A ragged row of blocks has no full block, and neither has a ragged column.
            whole = self.separate_full_blocks and last - first + 1 == q_block
            every = self._keys(last, first) if whole else range(0)
            full = range(-(-every.start // kv_block), every.stop // kv_block) if every else range(0)
            yield _Row(first, last, listed, full)

    def _keys(self, begin: int, end: int) -> range:
        """From the first key that query ``begin`` keeps to the last one that query ``end`` keeps."""
        start = 0 if self.left is None else max(0, begin - self.left)
        return range(start, self.kv_len if self.right is None else min(self.kv_len, end + self.right + 1))

    def _keep_first_key(self, row: _Row) -> bool:
        return row.read_first() * self.block_size[1] in self._keys(row.last, row.first)


@dataclass(frozen=True)
class _Row:
    """A row of blocks: its first and last query, the blocks listed, and the full ones of them.

    Where left + right < 0 nothing is kept, and blocks that lie between the bounds are taken for listed: none is full,
    none is safe, and consecutive they are.
    """

    first: int
    last: int
    listed: range
    full: range

    def is_contiguous(self) -> bool:
        """Whether the partial blocks are not on both sides of the full ones."""
        return not self.full or self.full.start == self.listed.start or self.full.stop == self.listed.stop

    def read_first(self) -> int:
        """The first partial block, or the first full one if there is no other."""
        if self.full and self.full.start == self.listed.start and self.full.stop < self.listed.stop:
            return self.full.stop
        return self.listed.start


def facts_of(
    band: Band | None, q_len: int, kv_len: int, block_size: tuple[int, int], separate_full_blocks: bool = True
) -> Facts | None:
    """The facts of a mask's Band; None where it has none, or document boundaries, of which only the device knows."""
    if band is None or band.cu_seqlens is not None:
        return None
    return _remembered(band.left, band.right, q_len, kv_len, block_size, separate_full_blocks)


_remembered = lru_cache(MOST_REMEMBERED)(Facts)
