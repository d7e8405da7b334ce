"""Rules whose tables are on a card, and the three ways to their lists: torch's, the calculus's, the kernels'."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

from attn_mods import block_mask
from attn_mods.block_mask import from_lists
from attn_mods.fused import kernels
from attn_mods.mask import Mask
from attn_mods.tiles import Grid
from attn_mods.tiles.rule import Rule
from tests.block_mask_equality import assert_same_block_mask
from tests.fused.comparison import assert_same_lists, lists_by_calculus, lists_by_kernels

DEVICE = "cuda"
UNFIT = {"tree_verification", "selected_blocks"}
"""Entries whose rules no kernel is generated for."""


def built_by_kernels(mask: Mask, *lengths: int, **options: Any) -> BlockMask:
    """A BlockMask made by kernels alone, once they are compiled; raise AssertionError if the calculus is asked."""
    for _ in range(2):
        mask.block_mask(*lengths, **options)
        kernels.finish()
    with mock.patch.object(block_mask, "_calculated_lists", side_effect=AssertionError("no kernel")):
        return mask.block_mask(*lengths, **options)


def moved(source: str) -> Rule:
    """The rule of a module's text, the tables of the module on the card."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<rule>", "exec"), namespace)
    for name, value in list(namespace.items()):
        if isinstance(value, Tensor):
            namespace[name] = value.to(DEVICE)
    rule: Rule = namespace["rule"]
    return rule


def torch_block_mask(rule: Rule, grid: Grid) -> BlockMask:
    """What torch makes of a rule on a grid, whose positions may be moved."""

    def at_offset(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return rule(b, h, q_idx + grid.q_offset, kv_idx + grid.kv_offset)

    offset = grid.q_offset or grid.kv_offset
    built = torch_create_block_mask(
        at_offset if offset else rule, grid.B, grid.H, grid.q_len, grid.kv_len, DEVICE, grid.block_size
    )
    built.mask_mod = rule
    return built


def assert_lists_agree(rule: Rule, grid: Grid, name: str, against_torch: bool = True) -> bool:
    """Whether the rule has kernels. Raise AssertionError unless all ways lead to the same lists.

    Those of the calculus and of the kernels are compared value for value, what counts of compact ones; with those of
    torch what counts.
    """
    for separate in (True, False):
        expected = lists_by_calculus(rule, grid, separate)
        if separate and against_torch:
            mine = from_lists(expected, rule, (grid.q_len, grid.kv_len), grid.block_size)
            assert_same_block_mask(mine, torch_block_mask(rule, grid))
        for compact in (False, True):
            got = lists_by_kernels(rule, grid, separate, compact)
            if got is None:
                return False
            assert_same_lists(got, expected, f"{name}, separate {separate}, compact {compact}", compact)
    return True
