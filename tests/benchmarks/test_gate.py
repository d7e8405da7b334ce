"""The gate refuses lists that are not the truth's, whatever it takes as the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.block_mask import LIST_NAMES, create_block_mask, lists_of
from benchmarks.gate import GATE_SEED, Gate, difference
from benchmarks.measured_masks import MASKS

LENGTH = 1024
GATES = {
    "torch": lambda: Gate("cpu"),
    "CPU": lambda: Gate("cpu", against_torch=0),
    "rows": lambda: Gate("cpu", against_torch=0, against_the_cpu=0),
}
NAMES = {"torch": "lists equal eager torch", "CPU": "lists equal the calculus on the CPU", "rows": "spot-checked"}


def built(mask: str, seed: int = GATE_SEED, **options: Any) -> BlockMask:
    rule = MASKS[mask].fresh_closure(LENGTH, seed, "cpu")
    block_mask = create_block_mask(rule, MASKS[mask].batch, None, LENGTH, LENGTH, "cpu", **options)
    for name, own in zip(LIST_NAMES, lists_of(block_mask), strict=False):
        setattr(block_mask, name, own.clone())
    return block_mask


def one_block_less(block_mask: Any) -> None:
    block_mask.kv_num_blocks[0, 0, 5] -= 1


def another_block(block_mask: Any) -> None:
    block_mask.kv_indices[0, 0, 5, 0] += 1


def rows_out_of_order(block_mask: Any) -> None:
    block_mask.full_kv_indices[0, 0, 7, :2] = block_mask.full_kv_indices[0, 0, 7, :2].flip(0).clone()


def columns_out_of_order(block_mask: Any) -> None:
    block_mask.full_q_indices[0, 0, 0, :2] = block_mask.full_q_indices[0, 0, 0, :2].flip(0).clone()


def another_column(block_mask: Any) -> None:
    block_mask.q_indices[0, 0, 2, 0] += 1


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mask", MASKS)
def test_right_lists_pass(mask: str, gate: str) -> None:
    wrong, compared = GATES[gate]().check(mask, built(mask))
    assert wrong is None
    assert compared.startswith(NAMES[gate])


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (one_block_less, "kv_"),
        (another_block, "kv_indices"),
        (rows_out_of_order, "full_kv_indices"),
        (columns_out_of_order, "full_q_indices"),
        (another_column, "q_indices"),
    ],
)
def test_wrong_lists_are_refused(spoil: Callable[[BlockMask], None], named: str, gate: str) -> None:
    block_mask = built("causal")
    spoil(block_mask)
    wrong, _ = GATES[gate]().check("causal", block_mask)
    assert wrong is not None and wrong.startswith(named)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("mask", ["prefix_lm", "dilated_blocks_and_global_tokens"])
def test_the_lists_of_other_values_are_refused(mask: str, gate: str) -> None:
    wrong, _ = GATES[gate]().check(mask, built(mask, seed=GATE_SEED + 1))
    assert wrong is not None


def test_what_stands_behind_a_count_is_not_read() -> None:
    block_mask: Any = built("causal")
    block_mask.kv_indices[0, 0, 0, 1:] = -1
    assert difference(block_mask, built("causal")) is None


def test_missing_lists_are_refused() -> None:
    partial_alone, separate = built("causal", separate_full_blocks=False), built("causal")
    assert difference(partial_alone, separate) == "kv_num_blocks differs"
    without: Any = built("causal")
    without.full_kv_num_blocks = None
    assert difference(without, separate) == "full_kv_num_blocks is missing"
    assert difference(separate, without) == "full_kv_num_blocks should not be there"


def test_lists_of_another_width_are_refused() -> None:
    narrow: Any = built("causal")
    narrow.kv_indices = narrow.kv_indices[..., :4]
    assert difference(narrow, built("causal")) == "kv_indices has another shape"


@pytest.mark.parametrize("gate", GATES)
def test_compact_lists_pass(gate: str) -> None:
    compact: Any = built("document_causal")
    longest = max(int(getattr(compact, name).max()) for name in LIST_NAMES if name.endswith("num_blocks"))
    for name in (name for name in LIST_NAMES if name.endswith("indices")):
        wide = getattr(compact, name)
        rows, columns = wide.shape[-2:]
        assert longest < columns
        buffer = torch.zeros(rows * longest + columns, dtype=wide.dtype)
        view = buffer.as_strided(wide.shape, (rows * longest, rows * longest, longest, 1))
        view[..., :longest] = wide[..., :longest]
        setattr(compact, name, view)
    assert GATES[gate]().check("document_causal", compact)[0] is None
