"""Packed documents: from boundaries to the document of each position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.realised import realised


def document_of(cu_seqlens: Tensor, total: int) -> Tensor:
    """The document of each of ``total`` positions, int64 [total]; empty documents have none."""
    positions = torch.arange(total, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    # The boundary at 0 is not counted, so that the first document has the number 0.
    return realised(torch.searchsorted(cu_seqlens[1:], positions, right=True))


def document_total(name: str, total: int | None) -> int:
    """The number of packed positions, read when the boundaries were checked.

    Raises:
        RuntimeError: The mask was made inside a compiled function, where no value can be read.
    """
    if total is None:
        checks.fail(
            name,
            "the number of packed tokens must be known",
            "boundaries whose values a compiler hides",
            "make the mask outside of the compiled function, or use Document.from_ids, whose length is a shape",
            RuntimeError,
        )
    return total


def check_total(name: str, field: str, total: int | None, q_end: int | None, kv_end: int | None) -> None:
    """Raise unless the documents end where the keys end, and hold every query."""
    if total is not None and kv_end is not None and total != kv_end:
        checks.fail(
            name,
            f"{field} must end at the number of keys, {kv_end}",
            total,
            "add a last boundary for the rest, for example a document of padding",
        )
    checks.queries_end(name, total, q_end, "check q_len and q_offset against the documents")


Side = tuple[Tensor, Tensor]
"""For each packed position its document, and the position where that document starts; int64 [total] each."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Packed documents of queries and keys: what ``per_document`` of masks and of scores have in common.

    Args:
        cu_seqlens: Document boundaries of the queries, integer [documents + 1], from 0 to the length.
        cu_seqlens_kv: Those of the keys if they are packed otherwise (cross attention); None = the same.

    Attributes:
        total: Packed queries; None if the boundaries were made inside a compiled function.
        total_kv: Packed keys, likewise.

    Raises:
        ValueError: Boundaries that fall or do not start at 0, or of another number of documents.
        TypeError: Boundaries that are no integer tensor.
    """

    cu_seqlens: Tensor
    cu_seqlens_kv: Tensor | None = None
    total: int | None = field(init=False, default=None)
    total_kv: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", checks.boundaries("per_document", "cu_seqlens", self.cu_seqlens))
        object.__setattr__(self, "total_kv", self.total)
        if self.cu_seqlens_kv is None:
            return
        object.__setattr__(self, "total_kv", checks.boundaries("per_document", "cu_seqlens_kv", self.cu_seqlens_kv))
        if self.cu_seqlens_kv.shape != self.cu_seqlens.shape:
            checks.fail(
                "per_document",
                "cu_seqlens and cu_seqlens_kv must name the same number of documents",
                f"{self.cu_seqlens.numel() - 1} and {self.cu_seqlens_kv.numel() - 1}",
                "give a document without keys or queries the length 0",
            )

    @property
    def kv_side(self) -> Tensor:
        """The boundaries of the keys."""
        return self.cu_seqlens if self.cu_seqlens_kv is None else self.cu_seqlens_kv

    def sides(self, name: str) -> tuple[Side, Side]:
        """The sides of queries and keys.

        Raises:
            RuntimeError: The boundaries were made inside a compiled function.
        """
        q_total, kv_total = document_total(name, self.total), document_total(name, self.total_kv)
        return _side(self.cu_seqlens, q_total), _side(self.kv_side, kv_total)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each document first query, one past the last, first key, one past the last."""
        q_side, kv_side = self.cu_seqlens.tolist(), self.kv_side.tolist()
        return zip(q_side[:-1], q_side[1:], kv_side[:-1], kv_side[1:], strict=True)

    def check_lengths(
        self, name: str, q_end: int | None, kv_end: int | None, inside: Callable[[int | None, int | None], None]
    ) -> None:
        """Raise unless the documents hold all queries and exactly the keys, and what is inside allows their lengths.

        Args:
            name: Whose name errors bear.
            q_end: One past the last query position, None if only the device knows it.
            kv_end: One past the last key position, likewise.
            inside: ``check_lengths`` of the mask or score inside the documents.
        """
        check_total(name, "cu_seqlens" if self.cu_seqlens_kv is None else "cu_seqlens_kv", self.total_kv, None, kv_end)
        checks.queries_end(name, self.total, q_end, "check q_len and q_offset against the documents")
        if self.total is not None:
            for q_start, q_stop, kv_start, kv_stop in self.spans():
                if q_stop > q_start and kv_stop > kv_start:
                    inside(q_stop - q_start, kv_stop - kv_start)


def _side(cu_seqlens: Tensor, total: int) -> Side:
    document = document_of(cu_seqlens, total)
    return document, realised(cu_seqlens.to(torch.int64)[document])
