"""What is known of every tile: EMPTY, FULL, MIXED, or UNKNOWN, and the sound algebra of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY, FULL, MIXED, UNKNOWN = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class States:
    """One code per tile; every code but UNKNOWN is a claim that holds.

    EMPTY: the rule keeps no position of the tile. FULL: it keeps all. MIXED: it certainly keeps some and drops some.
    UNKNOWN: no claim. Claims speak of the real positions only, so a ragged tile can be FULL.

    Args:
        codes: uint8 [B|1, H|1, rows, columns] of EMPTY, FULL, MIXED and UNKNOWN.

    Raises:
        TypeError: If the codes are no uint8 tensor.
        ValueError: If they do not have four axes.
    """

    codes: Tensor

    def __post_init__(self) -> None:
        """Check type and shape (not the values: that would synchronise)."""
        if not isinstance(self.codes, Tensor) or self.codes.dtype != torch.uint8:
            got = getattr(self.codes, "dtype", type(self.codes).__name__)
            raise TypeError(
                f"States: codes must be a uint8 tensor, got {got}; build them with States.from_planes or convert with "
                ".to(torch.uint8)"
            )
        if self.codes.dim() != 4:
            raise ValueError(
                f"States: codes must have shape [B|1, H|1, rows, columns], got {tuple(self.codes.shape)}; add axes of "
                "size 1 for a rule that does not depend on batch or head"
            )

    @classmethod
    def from_planes(cls, every: Tensor, some: Tensor, mixed: Tensor | bool) -> States:
        """Build states of three bool planes.

        Args:
            every: True where the rule certainly keeps every position.
            some: False where it certainly keeps none.
            mixed: True where it certainly keeps some and drops some.
        """
        open_code = UNKNOWN - mixed.to(torch.uint8) if isinstance(mixed, Tensor) else (MIXED if mixed else UNKNOWN)
        codes = (some & ~every).to(torch.uint8) * open_code + every.to(torch.uint8)
        return cls(codes)

    @property
    def unknown(self) -> Tensor:
        """Bool plane of the tiles without a claim."""
        return self.codes == UNKNOWN

    def __invert__(self) -> States:
        """States of the complement."""
        return States(torch.where(self.codes <= FULL, FULL - self.codes, self.codes))

    def __and__(self, other: States) -> States:
        """States of the intersection."""
        a, b = self.codes, other.codes
        joined = torch.where(a == FULL, b, torch.where(b == FULL, a, UNKNOWN))
        return States(torch.where((a == EMPTY) | (b == EMPTY), EMPTY, joined).to(torch.uint8))

    def __or__(self, other: States) -> States:
        """States of the union."""
        a, b = self.codes, other.codes
        joined = torch.where(a == EMPTY, b, torch.where(b == EMPTY, a, UNKNOWN))
        return States(torch.where((a == FULL) | (b == FULL), FULL, joined).to(torch.uint8))

    def __xor__(self, other: States) -> States:
        """States of the symmetric difference."""
        a, b = self.codes, other.codes
        not_a, not_b = (~self).codes, (~other).codes
        undecided_a = torch.where(b == EMPTY, a, torch.where(b == FULL, not_a, UNKNOWN))
        decided_a = torch.where(a == EMPTY, b, not_b)
        return States(torch.where(a <= FULL, decided_a, undecided_a).to(torch.uint8))
