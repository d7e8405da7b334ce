"""A query sees its own document causally and the whole of the document that is its prefix.

Rule: with d(i) the document of i, keep (i, j) iff d(j) = d(i) and j <= i, or d(j) = prefix_document[d(i)].
From: one prompt, many answers packed without repeating the prompt: "Prefix Grouper", section 3, for GRPO; FlashMask's
share-question mask.
Traps: a prefix document is causal inside; prefixes do not chain; position ids of an answer continue from the end of its
prefix, not from the answer before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.documents import check_total, document_of, document_total
from attn_mods.entry import Case, Entry, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.realised import realised

PREFIX_REMEDY = "pass one document number a document, -1 for no prefix"


@dataclass(frozen=True, eq=False)
class SharedPrefix(Mask):
    """Keep (i, j) iff j is in the document of i and j <= i, or j is in the prefix of that document.

    Args:
        cu_seqlens: Document boundaries in tokens, integer [documents + 1]: 0, then the running sum of the lengths.
        prefix_document: For each document the number of its prefix document, integer [documents]; -1 or its own number
            for none. The prefix may stand anywhere in the pack.

    Shapes:
        kv_len is the last boundary; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Boundaries that fall or do not end at kv_len; a number that is no document; a prefix with a prefix.
        TypeError: A tensor that is not of an integer dtype.

    References:
        Liu et al. 2025, arXiv 2506.05433, section 3; Wang et al. 2024, arXiv 2410.01359, figure 1.
    """

    cu_seqlens: Tensor
    prefix_document: Tensor
    total: int | None = field(init=False, repr=False, default=None)

    entry = Entry(
        title="Shared prefix",
        summary="A query sees its own document causally and the whole of the document that is its prefix.",
        papers=(
            Paper("Prefix Grouper: Efficient GRPO Training through Shared-Prefix Forward", "2506.05433", "section 3"),
            Paper(
                "FlashMask: Efficient and Rich Mask Extension of FlashAttention",
                "2410.01359",
                where="figure 1, share question mask",
            ),
        ),
        tags=frozenset({"causal", "packed", "prefix", "training"}),
        picture="""
            x.......
            xx......
            xxx.....
            xxxx....
            xxxxx...
            xxx..x..
            xxx..xx.
            xxx..xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: _case(_thirds(kv_len), [-1, 0, 0], device)),
            "own_number": Case(lambda q_len, kv_len, device: _case(_thirds(kv_len), [0, 0, 2], device)),
            "two_prefixes": Case(lambda q_len, kv_len, device: _case(_equal(kv_len, 6), [-1, 0, 0, -1, 3, 3], device)),
            "prefix_last": Case(lambda q_len, kv_len, device: _case(_equal(kv_len, 3), [2, 2, -1], device)),
            "empty_documents": Case(lambda q_len, kv_len, device: _case([0, kv_len, 0], [-1, 0, 0], device)),
            "bench": Case(lambda q_len, kv_len, device: _case(_prompt_and_answers(kv_len), [-1] + 8 * [0], device)),
        },
        traps=(
            "The prefix is visible in full to its answers but causal inside itself.",
            "Chains of prefixes are refused: what a prefix sees is not visible to its answers.",
            "Give each answer position ids that continue from the end of its prefix.",
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", checks.boundaries(self.name, "cu_seqlens", self.cu_seqlens))
        prefix = checks.tensor(
            self.name, "prefix_document", self.prefix_document, ndim=(1,), kind="integer", remedy=PREFIX_REMEDY
        )
        documents = self.cu_seqlens.numel() - 1
        if prefix.numel() != documents:
            checks.fail(self.name, f"prefix_document must have {documents} entries", prefix.numel(), PREFIX_REMEDY)
        if not checks.values_can_be_read():
            return
        numbers: list[int] = prefix.tolist()
        for document, number in enumerate(numbers):
            if not -1 <= number < documents:
                checks.fail(self.name, f"prefix_document must lie in -1 .. {documents - 1}", number, PREFIX_REMEDY)
            if number not in (-1, document) and numbers[number] not in (-1, number):
                got = f"{document} -> {number} -> {numbers[number]}"
                checks.fail(self.name, "a prefix must not have a prefix itself", got, "merge the two into one document")

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], prefix_document: Sequence[int], device: torch.device | str | None = None
    ) -> SharedPrefix:
        """From the number of tokens and the prefix of each document, in order; -1 is no prefix."""
        boundaries = checks.lengths("shared_prefix", "lengths", lengths, device)
        prefix = checks.integers(
            "shared_prefix", "prefix_document", prefix_document, PREFIX_REMEDY, ndim=(1,), device=device
        )
        return cls(boundaries, prefix)

    def mask_mod(self) -> MaskMod:
        """The rule as two intervals of keys by query: own document up to i, and the prefix."""
        document = document_of(self.cu_seqlens, document_total(self.name, self.total))
        prefix = self.prefix_document.to(torch.int64)
        own = torch.arange(prefix.numel(), device=prefix.device)
        prefix = torch.where(prefix < 0, own, prefix)
        start, end = self.cu_seqlens[:-1], self.cu_seqlens[1:]
        first = realised(start[document])
        prefix_first = realised(start[prefix[document]])
        prefix_end = realised(torch.where(prefix == own, start, end[prefix])[document])

        def shared_prefix(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            own_causal = (first[q_idx] <= kv_idx) & (kv_idx <= q_idx)
            return own_causal | ((prefix_first[q_idx] <= kv_idx) & (kv_idx < prefix_end[q_idx]))

        return shared_prefix

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Triangles along the diagonal and a rectangle for each document with a prefix, bool [q_len, kv_len]."""
        bounds, total = self.cu_seqlens.tolist(), int(self.cu_seqlens[-1])
        out = torch.zeros(total, total, dtype=torch.bool, device=self.cu_seqlens.device)
        for document, prefix in enumerate(self.prefix_document.tolist()):
            own = slice(bounds[document], bounds[document + 1])
            out[own, own] = torch.ones_like(out[own, own]).tril()
            if prefix not in (-1, document):
                out[own, bounds[prefix] : bounds[prefix + 1]] = True
        return out[:q_len, :kv_len]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The boundaries end at kv_len and hold every query."""
        check_total(self.name, "cu_seqlens", self.total, q_end, kv_end)


def _case(lengths: list[int], prefix_document: list[int], device: str) -> SharedPrefix:
    return SharedPrefix.from_lengths(lengths, prefix_document, device)


def _thirds(length: int) -> list[int]:
    first, second = (3 * length) // 8, length // 4
    return [first, second, length - first - second]


def _equal(length: int, documents: int) -> list[int]:
    return [length * (n + 1) // documents - length * n // documents for n in range(documents)]


def _prompt_and_answers(length: int) -> list[int]:
    return [length - length // 2, *_equal(length // 2, 8)]
