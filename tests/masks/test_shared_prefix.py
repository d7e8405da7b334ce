"""A shared prefix against the same documents packed with the prefix repeated, and errors."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import SharedPrefix


@pytest.mark.parametrize(
    ("lengths", "prefixes"),
    [
        ([5, 3, 4, 2], [-1, 0, 0, 0]),
        ([2, 3, 3, 4, 1], [-1, 0, -1, 2, 2]),
        ([3, 2, 4], [2, 2, -1]),
        ([3, 0, 2], [-1, 0, 0]),
        ([4, 3], [0, 1]),
    ],
)
def test_every_document_sees_what_it_would_behind_a_copy_of_its_prefix(lengths: list[int], prefixes: list[int]) -> None:
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    tokens = [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=True)]
    total = sum(lengths)
    dense = SharedPrefix.from_lengths(lengths, prefixes).dense(total, total)
    for document, prefix in enumerate(prefixes):
        before = tokens[prefix] if prefix not in (-1, document) else []
        for position, token in enumerate(tokens[document]):
            assert dense[token].nonzero().flatten().tolist() == sorted(before + tokens[document][: position + 1])


@pytest.mark.parametrize(
    ("lengths", "prefixes", "text"),
    [
        ([2, 2], [-1, 2], "shared_prefix: prefix_document must lie in -1 .. 1, got 2"),
        ([2, 2], [-2, 0], "shared_prefix: prefix_document must lie in -1 .. 1, got -2"),
        ([2, 2], [-1], "shared_prefix: prefix_document must have 2 entries, got 1"),
        ([2, 2, 2], [-1, 0, 1], "a prefix must not have a prefix itself, got 2 -> 1 -> 0"),
    ],
)
def test_errors(lengths: list[int], prefixes: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SharedPrefix.from_lengths(lengths, prefixes)


def test_tensors_of_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="shared_prefix: prefix_document must be an integer tensor"):
        SharedPrefix(torch.tensor([0, 2]), torch.tensor([-1.0]))
