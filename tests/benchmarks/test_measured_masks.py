"""What is measured: closure and entry are the same mask, and every seed gives other values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods.evaluation import evaluate_everywhere
from benchmarks.measured_masks import MASKS, PRINCIPAL, alternating, boundaries

LENGTH = 384
WITH_ENTRY = [name for name, mask in MASKS.items() if mask.entry is not None]
WITH_VALUES = [name for name in MASKS if name != "causal"]


def everywhere(name: str, rule: Any) -> Tensor:
    axes = (torch.arange(size) for size in (MASKS[name].batch, 1, LENGTH, LENGTH))
    return evaluate_everywhere(rule, *axes)


@pytest.mark.parametrize("name", WITH_ENTRY)
@pytest.mark.parametrize("seed", range(3))
def test_closure_and_entry_are_the_same_mask(name: str, seed: int) -> None:
    make = MASKS[name].entry
    assert make is not None
    entry = make(**MASKS[name].parameters(LENGTH, seed, "cpu"))
    assert entry.batch_and_heads() == (MASKS[name].batch, 1)
    visible = everywhere(name, MASKS[name].fresh_closure(LENGTH, seed, "cpu"))
    assert torch.equal(visible, entry.dense(LENGTH, LENGTH).expand_as(visible))


def test_one_rule_has_no_entry() -> None:
    assert set(MASKS) - set(WITH_ENTRY) == {"dilated_blocks_and_global_tokens"}


def test_the_rule_without_an_entry_is_what_its_name_says() -> None:
    name = "dilated_blocks_and_global_tokens"
    values = MASKS[name].parameters(LENGTH, 0, "cpu")
    visible = everywhere(name, MASKS[name].fresh_closure(LENGTH, 0, "cpu"))[0, 0]
    assert values["dilation"] == 8
    everyone = values["is_global"].nonzero()[:, 0].tolist()
    assert everyone
    for query in (0, 63, 64, 200, LENGTH - 1):
        own_block = range(query // 64 * 64, query + 1)
        expected = sorted({*own_block, *(token for token in everyone if token <= query)})
        assert visible[query].nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("name", MASKS)
def test_ints_as_tensors_are_the_same_mask(name: str) -> None:
    of_ints, of_tensors = (
        everywhere(name, make(LENGTH, 2, "cpu")) for make in (MASKS[name].fresh_closure, MASKS[name].closure_of_tensors)
    )
    assert torch.equal(of_ints, of_tensors)


@pytest.mark.parametrize("name", WITH_VALUES)
def test_every_seed_gives_other_values(name: str) -> None:
    first, second = (MASKS[name].parameters(8192, seed, "cpu") for seed in (1, 2))
    assert any(not torch.equal(torch.as_tensor(first[key]), torch.as_tensor(second[key])) for key in first)


@pytest.mark.parametrize("name", MASKS)
def test_a_seed_gives_the_same_values_again(name: str) -> None:
    first, again = (MASKS[name].parameters(LENGTH, 1, "cpu") for _ in range(2))
    assert all(torch.equal(torch.as_tensor(first[key]), torch.as_tensor(again[key])) for key in first)


def test_values_alternate_around_the_centre() -> None:
    assert [alternating(1024, seed) for seed in range(5)] == [1024, 1025, 1023, 1026, 1022]


@pytest.mark.parametrize(("length", "documents"), [(8192, 64), (8192, 5000), (256, 5000), (256, 1)])
def test_documents_fill_the_sequence(length: int, documents: int) -> None:
    cuts = boundaries(length, documents, seed=3)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, length, min(documents, length) + 1)
    assert (cuts[1:] > cuts[:-1]).all()


def test_the_principal_masks_are_measured() -> None:
    assert set(PRINCIPAL) <= set(MASKS)
