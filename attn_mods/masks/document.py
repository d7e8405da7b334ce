"""A query sees the keys of its own document in a packed sequence.

Rule: keep (i, j) iff document(i) = document(j) and neither is padding.
From: sequence packing, for example Krell et al., "Efficient Sequence Packing without Cross-contamination", section 3.2.
Traps: resetting position ids alone does not separate documents; padding must not see padding; a document of length 0
has no tokens and shifts nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.documents import check_total, document_of, document_total
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._rows import one_row

IDS_REMEDY = "pass one document number a position"


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """Keep (i, j) iff i and j are in the same document.

    Args:
        cu_seqlens: Document boundaries in tokens, integer [documents + 1]: 0, then the running sum of the lengths up
            to kv_len. Equal neighbours are an empty document.
        ids: The document of each position instead, integer [S] or [B, S]; equal ids need not be neighbours.
        padding: The id of positions that see nothing and that nothing sees; used with ``ids`` only.

    Shapes:
        kv_len is the last boundary, or S; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Boundaries that fall, that do not start at 0 or (at use) do not end at kv_len; neither or both of
            cu_seqlens and ids.
        TypeError: A tensor that is not of an integer dtype.

    References:
        Krell et al. 2021, arXiv 2107.02027, section 3.2.
    """

    cu_seqlens: Tensor | None = None
    ids: Tensor | None = None
    padding: int = -1
    total: int | None = field(init=False, repr=False, default=None)

    entry = Entry(
        title="Document",
        summary="A query sees the keys of its own document in a packed sequence.",
        papers=(
            Paper(
                "Efficient Sequence Packing without Cross-contamination",
                "2107.02027",
                where="section 3.2, the block-diagonal attention mask",
            ),
        ),
        models=(Model("ModernBERT", field="cu_seqlens"),),
        tags=frozenset({"packed", "encoder"}),
        picture="""
            xxx.....
            xxx.....
            xxx.....
            ...xx...
            ...xx...
            .....xxx
            .....xxx
            .....xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: Document.from_lengths(_thirds(kv_len), device)),
            "one": Case(lambda q_len, kv_len, device: Document.from_lengths([kv_len], device)),
            "every_token": Case(lambda q_len, kv_len, device: Document.from_lengths([1] * kv_len, device)),
            "empty_documents": Case(lambda q_len, kv_len, device: Document.from_lengths([0, 0, kv_len, 0], device)),
            "ids": Case(lambda q_len, kv_len, device: Document.from_ids(_ids(kv_len, device)[0])),
            "ids_per_sample": Case(lambda q_len, kv_len, device: Document.from_ids(_ids(kv_len, device))),
            "ids_of_one_sample": Case(lambda q_len, kv_len, device: Document.from_ids(_ids(kv_len, device)[1:])),
            "bench": Case(lambda q_len, kv_len, device: Document.from_lengths(_uneven(kv_len, 8), device)),
        },
        traps=(
            "Resetting position ids does not separate documents; only a mask does.",
            "A naive same-id test lets padding see padding: give padding its own id.",
            "searchsorted without right=True puts the first token of a document into the one before.",
        ),
    )

    def __post_init__(self) -> None:
        if (self.cu_seqlens is None) == (self.ids is None):
            checks.fail(
                self.name,
                "exactly one of cu_seqlens and ids must be given",
                "both" if self.ids is not None else "neither",
                "pass cu_seqlens, or use Document.from_lengths or Document.from_ids",
            )
        if self.cu_seqlens is not None:
            object.__setattr__(self, "total", checks.boundaries(self.name, "cu_seqlens", self.cu_seqlens))
        else:
            ids = checks.tensor(self.name, "ids", self.ids, ndim=(1, 2), kind="integer", remedy=IDS_REMEDY)
            object.__setattr__(self, "total", ids.shape[-1])
        checks.static_integer_field(self, "padding", None, "pass the id of the positions that see nothing")

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor, device: torch.device | str | None = None) -> Document:
        """From the number of tokens of each document, in order; 0 is an empty document.

        Raises:
            ValueError: A length below 0, no length at all, 2^31 tokens or more.
            TypeError: Something else than whole numbers.
        """
        return cls(checks.lengths("document", "lengths", lengths, device))

    @classmethod
    def from_ids(cls, ids: Tensor, padding: int = -1) -> Document:
        """From one document number a position, [S] or [B, S]; ``padding`` positions see and are seen by nothing.

        Raises:
            TypeError: Something else than an integer tensor.
        """
        if ids is None:
            checks.fail("document", "ids must be an integer tensor", None, IDS_REMEDY, TypeError)
        return cls(ids=ids, padding=padding)

    def mask_mod(self) -> MaskMod:
        """The rule document(i) = document(j)."""
        padding = self.padding
        if self.cu_seqlens is not None:
            document_id = document_of(self.cu_seqlens, document_total(self.name, self.total))
        else:
            document_id = one_row(self._ids)

        def document(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return document_id[q_idx] == document_id[kv_idx]

        def document_of_ids(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (document_id[q_idx] == document_id[kv_idx]) & (document_id[kv_idx] != padding)

        def document_per_sample(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (document_id[b, q_idx] == document_id[b, kv_idx]) & (document_id[b, kv_idx] != padding)

        if self.cu_seqlens is not None:
            return document
        return document_of_ids if document_id.ndim == 1 else document_per_sample

    @property
    def _ids(self) -> Tensor:
        if self.ids is None:
            raise AttributeError("a Document of cu_seqlens has no ids")
        return self.ids

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Blocks of ones along the diagonal, bool [q_len, kv_len]; [B, 1, q_len, kv_len] for ids [B, S]."""
        if self.cu_seqlens is not None:
            boundaries = self.cu_seqlens.tolist()
            blocks = torch.zeros(boundaries[-1], boundaries[-1], dtype=torch.bool, device=self.cu_seqlens.device)
            for start, end in itertools.pairwise(boundaries):
                blocks[start:end, start:end] = True
            return blocks[:q_len, :kv_len]
        same = self._ids[..., :, None] == self._ids[..., None, :]
        visible = (same & (self._ids != self.padding)[..., None, :])[..., :q_len, :kv_len]
        return visible if self._ids.ndim == 1 else visible[:, None]

    def band(self) -> Band | None:
        """No bound inside a document; None for ids."""
        return None if self.cu_seqlens is None else Band(cu_seqlens=self.cu_seqlens)

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per row of ids."""
        return self.ids.shape[0] if self.ids is not None and self.ids.ndim == 2 else 1, 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The boundaries, or the ids, end at kv_len and hold every query."""
        check_total(self.name, "cu_seqlens" if self.ids is None else "ids", self.total, q_end, kv_end)


def _thirds(length: int) -> list[int]:
    first, second = (3 * length) // 8, length // 4
    return [first, second, length - first - second]


def _uneven(length: int, documents: int) -> list[int]:
    shares = [(length * (n + 1)) // (documents * (documents + 1) // 2) for n in range(documents - 1)]
    return [*shares, length - sum(shares)]


def _ids(length: int, device: str) -> Tensor:
    position = torch.arange(length, device=device)
    return torch.stack([position // 50, (position // 20) % 3]).where(position < (4 * length + 4) // 5, -1)
