"""Band: the masks that fixed-function attention kernels understand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Band:
    """Keep (i, j) iff ``i - left <= j <= i + right`` and both are in the same document.

    Args:
        left: Keys seen before the query, its own not counted; None = unbounded. Negative: the band ends before i.
        right: Keys seen after the query, its own not counted; None = unbounded. Negative: the band ends before i.
        cu_seqlens: Document boundaries [documents + 1] from 0 to the length, or None for one document.
    """

    left: int | None = None
    right: int | None = None
    cu_seqlens: Tensor | None = None

    def intersect(self, other: Band) -> Band | None:
        """The band of ``&``: the smaller bounds and the union of the boundaries; None if the lengths differ."""
        boundaries = [band.cu_seqlens for band in (self, other) if band.cu_seqlens is not None]
        if len(boundaries) == 2:
            if int(boundaries[0][-1]) != int(boundaries[1][-1]):
                return None
            boundaries = [boundaries[0].new_tensor(sorted({*boundaries[0].tolist(), *boundaries[1].tolist()}))]
        cu_seqlens = boundaries[0] if boundaries else None
        return Band(_smaller(self.left, other.left), _smaller(self.right, other.right), cu_seqlens)

    def shift(self, q: int, kv: int) -> Band | None:
        """The band of a mask shifted by ``q`` and ``kv`` positions; None with documents, which do not move."""
        if self.cu_seqlens is not None:
            return self if q == kv == 0 else None
        move = q - kv
        left = None if self.left is None else self.left - move
        right = None if self.right is None else self.right + move
        return Band(left, right)


def _smaller(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
