"""Packed documents: from boundaries to the document of each position."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.realised import realised


def document_of(cu_seqlens: Tensor, total: int) -> Tensor:
    """The document of each of ``total`` positions, int64 [total]; empty documents have none."""
    positions = torch.arange(total, device=cu_seqlens.device)
    return realised(torch.searchsorted(cu_seqlens.to(torch.int64), positions, right=True) - 1)


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


def check_total(name: str, field: str, total: int | None, kv_end: int | None) -> None:
    """Raise unless the boundaries end where the keys end."""
    if total is not None and kv_end is not None and total != kv_end:
        checks.fail(
            name,
            f"{field} must end at the number of keys, {kv_end}",
            total,
            "add a last boundary for the rest, for example a document of padding",
        )


def document_and_start(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The document of each position and the position where that document starts, int64 [total] each."""
    document = document_of(cu_seqlens, total)
    return document, realised(cu_seqlens.to(torch.int64)[document])
