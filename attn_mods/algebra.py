"""The algebra of masks: ``&``, ``|`` and ``~`` in one frame of absolute positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.mask import Frame, Mask, MaskMod, joint_frame
from attn_mods.tiles import Grid, States


class Composition(Mask):
    """What two masks have in common under ``&`` and ``|``: one frame, sizes that broadcast."""

    left: Mask
    right: Mask

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """That of both together."""
        return joint_frame(self.left.frame, self.right.frame)

    @property
    def name(self) -> str:
        """The names of both parts."""
        sign = "&" if isinstance(self, And) else "|"
        return f"({self.left.name} {sign} {self.right.name})"

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H), broadcast over the parts."""
        (left_batch, left_heads), (right_batch, right_heads) = self.left.batch_and_heads(), self.right.batch_and_heads()
        return (
            checks.broadcast(self.name, "B", left_batch, right_batch),
            checks.broadcast(self.name, "H", left_heads, right_heads),
        )

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Each part checks for itself."""
        self.left.check_lengths(q_end, kv_end)
        self.right.check_lengths(q_end, kv_end)

    def dense_parts(self, q_len: int, kv_len: int) -> tuple[Tensor, Tensor]:
        """Both dense masks on one device; a mask without tensors makes its own on the CPU."""
        left, right = self.left.dense(q_len, kv_len), self.right.dense(q_len, kv_len)
        if left.device.type == "cpu":
            left = left.to(right.device)
        return left, right.to(left.device)

    def has_own_tile_states(self) -> bool:
        """Whether a part has."""
        return self.left.has_own_tile_states() or self.right.has_own_tile_states()


@dataclass(frozen=True, eq=False)
class And(Composition):
    """``left & right``: visible in both."""

    left: Mask
    right: Mask

    def mask_mod(self) -> MaskMod:
        """The rule of both."""
        left, right = self.left.mask_mod(), self.right.mask_mod()

        def and_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return left(b, h, q_idx, kv_idx) & right(b, h, q_idx, kv_idx)

        return and_mask

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Both dense masks."""
        left, right = self.dense_parts(q_len, kv_len)
        return left & right

    def band(self) -> Band | None:
        """The intersection of both bands."""
        left, right = self.left.band(), self.right.band()
        return None if left is None or right is None else left.intersect(right)

    def tile_states(self, grid: Grid) -> States:
        """States of the parts where one has a closed form, else of the whole rule."""
        if not self.has_own_tile_states():
            return super().tile_states(grid)
        return self.left.tile_states(grid) & self.right.tile_states(grid)


@dataclass(frozen=True, eq=False)
class Or(Composition):
    """``left | right``: visible in at least one."""

    left: Mask
    right: Mask

    def mask_mod(self) -> MaskMod:
        """The rule of either."""
        left, right = self.left.mask_mod(), self.right.mask_mod()

        def or_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return left(b, h, q_idx, kv_idx) | right(b, h, q_idx, kv_idx)

        return or_mask

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Either dense mask."""
        left, right = self.dense_parts(q_len, kv_len)
        return left | right

    def tile_states(self, grid: Grid) -> States:
        """States of the parts where one has a closed form, else of the whole rule."""
        if not self.has_own_tile_states():
            return super().tile_states(grid)
        return self.left.tile_states(grid) | self.right.tile_states(grid)


class Wrapper(Mask):
    """A mask made from one other mask."""

    mask: Mask

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """The frame of the mask inside."""
        return self.mask.frame

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) of the mask inside."""
        return self.mask.batch_and_heads()

    def has_own_tile_states(self) -> bool:
        """Whether the mask inside has."""
        return self.mask.has_own_tile_states()


@dataclass(frozen=True, eq=False)
class Not(Wrapper):
    """``~mask``: visible where the mask hides."""

    mask: Mask

    @property
    def name(self) -> str:
        """The name inside, negated."""
        return f"~{self.mask.name}"

    def mask_mod(self) -> MaskMod:
        """The negated rule."""
        mask = self.mask.mask_mod()

        def not_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return ~mask(b, h, q_idx, kv_idx)

        return not_mask

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The negated dense mask."""
        return ~self.mask.dense(q_len, kv_len)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The mask inside checks."""
        self.mask.check_lengths(q_end, kv_end)

    def tile_states(self, grid: Grid) -> States:
        """Full and empty change places."""
        return ~self.mask.tile_states(grid) if self.has_own_tile_states() else super().tile_states(grid)
