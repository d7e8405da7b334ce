"""The frames of masks: shifted positions, and positions counted inside each document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attn_mods.algebra import Wrapper
from attn_mods.band import Band
from attn_mods.documents import Documents
from attn_mods.mask import Frame, Mask, MaskMod, Offset, moved_end
from attn_mods.tiles import Grid, States


def _may_be_negative(offset: Offset) -> bool:
    return isinstance(offset, Tensor) or offset < 0


@dataclass(frozen=True, eq=False)
class Shifted(Wrapper):
    """``mask.shift(q, kv)``: the mask seen from first query position q and first key position kv."""

    mask: Mask
    q: Offset = 0
    kv: Offset = 0

    @property
    def name(self) -> str:
        """The name inside."""
        return self.mask.name

    def mask_mod(self) -> MaskMod:
        """The rule at moved positions."""
        mask, q, kv = self.mask.mask_mod(), self.q, self.kv

        def shifted(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return mask(b, h, q_idx + q, kv_idx + kv)

        def shifted_within_sequence(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            i, j = q_idx + q, kv_idx + kv
            return mask(b, h, i.clamp(min=0), j.clamp(min=0)) & (i >= 0) & (j >= 0)

        return shifted_within_sequence if _may_be_negative(q) or _may_be_negative(kv) else shifted

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A window of the dense mask; rows and columns before position 0 are empty."""
        q, kv = int(self.q), int(self.kv)
        inner = self.mask.dense(max(q_len + q, 0), max(kv_len + kv, 0))[..., max(q, 0) :, max(kv, 0) :]
        rows, columns = min(max(-q, 0), q_len), min(max(-kv, 0), kv_len)
        return torch.nn.functional.pad(inner, (columns, 0, rows, 0), value=False)

    def band(self) -> Band | None:
        """The moved band; None for offsets that are tensors or below 0."""
        inner = self.mask.band()
        if inner is None or isinstance(self.q, Tensor) or isinstance(self.kv, Tensor) or self.q < 0 or self.kv < 0:
            return None
        return inner.shift(self.q, self.kv)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The mask inside checks the moved positions."""
        self.mask.check_lengths(moved_end(q_end, self.q), moved_end(kv_end, self.kv))

    def has_own_tile_states(self) -> bool:
        """Whether the mask inside has, and the grid can be moved onto it."""
        return not (_may_be_negative(self.q) or _may_be_negative(self.kv)) and self.mask.has_own_tile_states()

    def tile_states(self, grid: Grid) -> States:
        """The states of the mask inside on the moved grid."""
        if not self.has_own_tile_states():
            return super().tile_states(grid)
        return self.mask.tile_states(replace(grid, q_offset=grid.q_offset + self.q, kv_offset=grid.kv_offset + self.kv))


@dataclass(frozen=True, eq=False)
class PerDocument(Wrapper):
    """``mask.per_document(cu_seqlens)``: the mask inside each document, in positions of that document."""

    mask: Mask
    cu_seqlens: Tensor
    cu_seqlens_kv: Tensor | None = None
    documents: Documents = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "documents", Documents(self.cu_seqlens, self.cu_seqlens_kv))

    @property
    def frame(self) -> Frame:  # type: ignore[override]  # of each instance
        """ "cross" with boundaries of its own for the keys, else "self": the rule reads the document of i."""
        return "self" if self.cu_seqlens_kv is None else "cross"

    @property
    def name(self) -> str:
        """The name inside."""
        return f"{self.mask.name}.per_document"

    def mask_mod(self) -> MaskMod:
        """Same document, and the rule at positions counted from its start."""
        mask = self.mask.mask_mod()
        (q_document, q_start), (kv_document, kv_start) = self.documents.sides(self.name)

        def per_document(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            same = q_document[q_idx] == kv_document[kv_idx]
            return same & mask(b, h, q_idx - q_start[q_idx], kv_idx - kv_start[kv_idx])

        return per_document

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The dense masks of the documents along the diagonal."""
        batch, heads = self.batch_and_heads()
        q_total, kv_total = int(self.documents.cu_seqlens[-1]), int(self.documents.kv_side[-1])
        out = torch.zeros(batch, heads, q_total, kv_total, dtype=torch.bool, device=self.cu_seqlens.device)
        for q0, q1, kv0, kv1 in self.documents.spans():
            out[:, :, q0:q1, kv0:kv1] = self.mask.dense(q1 - q0, kv1 - kv0)
        return out[:, :, :q_len, :kv_len]

    def band(self) -> Band | None:
        """The band inside, which no document boundary moves, cut at the boundaries."""
        inner = self.mask.band()
        if inner is None or inner.cu_seqlens is not None or self.cu_seqlens_kv is not None:
            return None
        return Band(inner.left, inner.right, self.cu_seqlens)

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The documents hold all positions, and the mask inside checks each of them."""
        self.documents.check_lengths(self.name, q_end, kv_end, self.mask.check_lengths)

    def has_own_tile_states(self) -> bool:
        """Never: a closed form in document positions is none in packed ones."""
        return False

    def tile_states(self, grid: Grid) -> States:
        """States of the whole rule."""
        return Mask.tile_states(self, grid)
