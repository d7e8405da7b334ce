"""BlockMasks built on a card: list for list torch's own, by the calculus and by the kernels, in both forms of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

import attn_mods as am
from attn_mods import block_mask, compact_lists, masks, registry
from attn_mods.block_mask import LIST_NAMES, list_bytes
from attn_mods.fused import kernels
from attn_mods.mask import Mask
from tests.gpu.rules_on_a_card import UNFIT, built_by_kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ENTRIES = [(name, case) for name in am.names(kind="mask") for case in registry.info(name).cases]
LENGTH = 1000


def assert_same_lists(got: BlockMask, want: BlockMask) -> None:
    """Counts, and the entries that count."""
    for counts_name, indices_name in zip(LIST_NAMES[::2], LIST_NAMES[1::2], strict=True):
        counts, wanted_counts = getattr(got, counts_name), getattr(want, counts_name)
        assert torch.equal(counts, wanted_counts), counts_name
        indices, wanted = getattr(got, indices_name), getattr(want, indices_name)
        assert indices.shape == wanted.shape
        counted = torch.arange(wanted.shape[-1], device=wanted.device) < wanted_counts[..., None]
        assert torch.equal(indices[counted], wanted[counted]), indices_name


def built(mask: Mask, *lengths: int, **options: Any) -> list[BlockMask]:
    """By the calculus and by kernels alone."""
    with mock.patch.object(block_mask, "_fused_lists", return_value=None):
        by_calculus = mask.block_mask(*lengths, **options)
    return [by_calculus, built_by_kernels(mask, *lengths, **options)]


@pytest.mark.parametrize(("name", "case"), ENTRIES, ids=[f"{name}-{case}" for name, case in ENTRIES])
def test_every_entry(name: str, case: str) -> None:
    made = registry.info(name).cases[case]
    q_len, kv_len = (made.lengths or ((LENGTH, LENGTH),))[-1]
    mask: Mask = made.make(q_len, kv_len, "cuda")
    batch, heads = mask.batch_and_heads()
    offset = kv_len - q_len if q_len != kv_len and mask.frame == "self" else None
    rule = mask.place(q_len, kv_len, offset).mask_mod()
    want = torch_create_block_mask(rule, batch, heads, q_len, kv_len, "cuda")
    for compact in (False, True):
        options: dict[str, Any] = {"device": "cuda", "q_offset": offset, "compact": compact}
        lists = [mask.block_mask(q_len, kv_len, **options)] if name in UNFIT else built(mask, q_len, kv_len, **options)
        for got in lists:
            assert_same_lists(got, want)


@pytest.mark.parametrize("block_size", [(64, 128), (128, 64), (96, 32), (256, 128)])
def test_blocks_of_other_sizes(block_size: tuple[int, int]) -> None:
    mask = masks.SlidingWindow(window=torch.tensor([3, 200, 900], device="cuda")) & masks.Causal()
    want = torch_create_block_mask(mask.mask_mod(), 1, 3, 777, 777, "cuda", block_size)
    for got in built(mask, 777, device="cuda", block_size=block_size):
        assert_same_lists(got, want)
    for got in built(mask, 777, device="cuda", block_size=block_size, separate_full_blocks=False):
        assert got.full_kv_num_blocks is None
        for side in ("kv", "q"):
            partial, full = (getattr(want, f"{kind}{side}_num_blocks") for kind in ("", "full_"))
            assert torch.equal(getattr(got, f"{side}_num_blocks"), partial + full)


def test_decoding_compiles_nothing() -> None:
    mask, kv_len = masks.SlidingWindow(window=300), 2000
    built(mask, 1, kv_len, device="cuda", q_offset=1)
    made = set(kernels._made)
    for offset in range(1, kv_len, 37):
        got = mask.block_mask(1, kv_len, device="cuda", q_offset=offset)
        want = torch_create_block_mask(mask.shift(q=offset).mask_mod(), 1, 1, 1, kv_len, "cuda")
        assert_same_lists(got, want)
    assert set(kernels._made) == made


def test_values_compile_nothing() -> None:
    built(masks.SlidingWindow(window=300), 2000, device="cuda")
    made = set(kernels._made)
    for window in (1, 16, 128, 129, 2000, 1 << 30):
        mask = masks.SlidingWindow(window=window)
        want = torch_create_block_mask(mask.mask_mod(), 1, 1, 2000, 2000, "cuda")
        assert_same_lists(mask.block_mask(2000, device="cuda"), want)
    assert set(kernels._made) == made


def test_a_lookup_out_of_range_is_named() -> None:
    table = torch.arange(100, device="cuda") * 3
    good = torch.arange(200, device="cuda")

    def straight(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return good[table[q_idx % 100] % 200] >= kv_idx

    for _ in range(3):
        am.create_block_mask(straight, None, None, 300, 300, "cuda")
        kernels.finish()
    good = torch.arange(150, device="cuda")
    with pytest.raises(IndexError, match="straight: a lookup leaves its table"):
        am.create_block_mask(straight, None, None, 300, 300, "cuda")


ATTENTION: dict[str, Callable[[int], Mask]] = {
    "causal": lambda length: masks.Causal(),
    "sliding_window": lambda length: masks.SlidingWindow(window=300),
    "per_head": lambda length: masks.SlidingWindow(window=torch.tensor([5, 129, 700, length], device="cuda")),
    "documents": lambda length: (
        masks.Document.from_lengths([length // 3, length - length // 3], "cuda") & masks.Causal()
    ),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_gives_the_same_bits_with_both_forms(name: str, dtype: torch.dtype) -> None:
    length = 2100
    mask = ATTENTION[name](length)
    full, compact = (built(mask, length, device="cuda", compact=form)[-1] for form in (False, True))
    assert list_bytes(compact) < list_bytes(full) or name == "causal"
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = [torch.randn(2, 4, length, 64, device="cuda", dtype=dtype, generator=generator) for _ in range(4)]
    compiled = torch.compile(flex_attention, fullgraph=True)
    results = []
    for lists in (full, compact):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
        out = compiled(*leaves, block_mask=lists)
        out.backward(tensors[3])
        results.append([out, *(leaf.grad for leaf in leaves)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_the_self_check_of_compact_lists() -> None:
    assert compact_lists.same_bits(torch.device("cuda", 0))


def peak_and_lists(mask: Mask, length: int, compact: bool) -> tuple[int, int]:
    """Bytes a build needs, its lists included, and those of the lists."""
    built(mask, length, device="cuda", compact=compact)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made = mask.block_mask(length, device="cuda", compact=compact)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, list_bytes(made)


@pytest.mark.parametrize("length", [32_768, 131_072])
def test_memory_with_lists_of_full_width(length: int) -> None:
    boundaries = torch.arange(0, length + 1, 512, device="cuda")
    for mask in (masks.Causal(), masks.SlidingWindow(window=1024), masks.Document(boundaries) & masks.Causal()):
        peak, lists = peak_and_lists(mask, length, compact=False)
        assert peak <= 1.5 * lists + (1 << 20)


def test_memory_of_a_window_over_a_million_tokens() -> None:
    peak, lists = peak_and_lists(masks.SlidingWindow(window=1024), 1 << 20, compact=True)
    assert peak <= 64_000_000
    assert lists <= 2_000_000
