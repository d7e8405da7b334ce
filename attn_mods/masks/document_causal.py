"""A query sees its own key and the earlier ones of its own document in a packed sequence.

Rule: keep (i, j) iff document(i) = document(j) and j <= i.
From: the masks document and causal; used in "The Llama 3 Herd of Models", section 3.2.
Trap: a causal mask alone lets every document see those packed before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask
from attn_mods.masks.causal import Causal
from attn_mods.masks.document import Document


def document_causal(cu_seqlens: Tensor) -> Mask:
    """``Document(cu_seqlens) & Causal()``: keep (i, j) iff i and j are in the same document and j <= i.

    With one document number a position instead of boundaries write ``Document.from_ids(ids) & Causal()``.

    Args:
        cu_seqlens: Document boundaries in tokens, integer [documents + 1]: 0, then the running sum of the lengths up
            to kv_len. Equal neighbours are an empty document.

    Shapes:
        kv_len is the last boundary; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Boundaries that fall, that do not start at 0 or (at use) do not end at kv_len.
        TypeError: A tensor that is not of an integer dtype.

    References:
        Krell et al. 2021, arXiv 2107.02027, section 3.2. Llama Team 2024, arXiv 2407.21783, section 3.2.
    """
    return Document(cu_seqlens) & Causal()


DOCUMENT_CAUSAL = Entry(
    name="document_causal",
    kind="mask",
    build=document_causal,
    title="Causal within documents",
    summary="A query sees its own key and the earlier ones of its own document in a packed sequence.",
    papers=(
        Paper("Efficient Sequence Packing without Cross-contamination", "2107.02027", where="section 3.2"),
        Paper("The Llama 3 Herd of Models", "2407.21783", where="section 3.2"),
    ),
    models=(Model("Llama 3"),),
    tags=frozenset({"packed", "causal", "decoder"}),
    picture="""
        x.......
        xx......
        xxx.....
        ...x....
        ...xx...
        .....x..
        .....xx.
        .....xxx
    """,
    cases={
        "tiny": Case(lambda q_len, kv_len, device: _packed([3 * kv_len // 8, kv_len // 4], kv_len, device)),
        "one": Case(lambda q_len, kv_len, device: _packed([], kv_len, device)),
        "every_token": Case(lambda q_len, kv_len, device: _packed([1] * (kv_len - 1), kv_len, device)),
        "empty_documents": Case(lambda q_len, kv_len, device: _packed([0, kv_len // 2, 0], kv_len, device)),
        "bench": Case(lambda q_len, kv_len, device: _packed([kv_len // 12, kv_len // 4, kv_len // 6], kv_len, device)),
    },
    traps=("A causal mask alone lets every document see those packed before it.",),
)


def _packed(first_lengths: list[int], length: int, device: str) -> Mask:
    """Documents of the first lengths and one of the rest."""
    lengths = torch.tensor([0, *first_lengths, length - sum(first_lengths)], device=device)
    return document_causal(lengths.cumsum(0).to(torch.int32))
