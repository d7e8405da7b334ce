"""Masks on a card: kernels build what torch builds, and attention computes the reference with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

import attn_mods as am
from attn_mods import block_mask, masks, registry
from attn_mods.backends.block_mask_cache import BLOCK_MASKS
from attn_mods.fused import kernels
from attn_mods.mask import Mask
from tests.block_mask_equality import assert_same_block_mask
from tests.gpu.rules_on_a_card import DEVICE, UNFIT, built_by_kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ENTRIES = [(name, case) for name in am.names(kind="mask") for case in registry.info(name).cases if case != "bench"]


@pytest.mark.parametrize(("name", "case"), ENTRIES, ids=[f"{name}-{case}" for name, case in ENTRIES])
def test_entry_with_blocks_of_unequal_sides(name: str, case: str) -> None:
    made = registry.info(name).cases[case]
    q_len, kv_len = (made.lengths or ((300, 300),))[0]
    mask: Mask = made.make(q_len, kv_len, DEVICE)
    batch, heads = mask.batch_and_heads()
    options: dict[str, Any] = {"device": DEVICE, "block_size": (64, 128)}
    offset = kv_len - q_len if mask.frame == "self" and q_len != kv_len else None
    rule = mask.place(q_len, kv_len, offset).mask_mod()
    want = torch_create_block_mask(rule, batch, heads, q_len, kv_len, DEVICE, (64, 128))
    if name in UNFIT:
        with pytest.raises(AssertionError, match="no kernel"):
            built_by_kernels(mask, q_len, kv_len, q_offset=offset, **options)
        got = mask.block_mask(q_len, kv_len, q_offset=offset, **options)
    else:
        got = built_by_kernels(mask, q_len, kv_len, q_offset=offset, **options)
    want.mask_mod = got.mask_mod
    assert_same_block_mask(got, want)


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 700])
def test_offset(offset: int) -> None:
    mask = masks.SlidingWindow(window=200) & masks.Document.from_ids(torch.arange(1000, device=DEVICE) // 170)
    got = built_by_kernels(mask, 300, 1000, q_offset=offset, device=DEVICE)
    want = torch_create_block_mask(mask.shift(q=offset).mask_mod(), 1, 1, 300, 1000, DEVICE)
    want.mask_mod = got.mask_mod
    assert_same_block_mask(got, want)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (1, 4), (3, 4)], ids=str)
def test_batch_and_heads_that_a_rule_does_not_read(sizes: tuple[int, int]) -> None:
    got = built_by_kernels(masks.SlidingWindow(window=200), 700, B=sizes[0], H=sizes[1], device=DEVICE)
    want = torch_create_block_mask(masks.SlidingWindow(window=200).mask_mod(), *sizes, 700, 700, DEVICE)
    want.mask_mod = got.mask_mod
    assert_same_block_mask(got, want)


ATTENDED: dict[str, Callable[[], Mask]] = {
    "causal": masks.Causal,
    "window per head": lambda: masks.SlidingWindow(window=torch.tensor([5, 129, 300, 700], device=DEVICE)),
    "packed": lambda: masks.Document.from_lengths([100, 300, 1, 299], DEVICE) & masks.Causal(),
}


def assert_attends(mask: Mask, length: int, heads: int = 4) -> None:
    """Raise AssertionError unless flex computes the reference, gradients included."""
    *inputs, gradient = (torch.randn(1, heads, length, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    truth = [tensor.double().requires_grad_() for tensor in inputs]
    out = am.attention(ours[0], ours[1], ours[2], mask, backend="flex")
    expected = am.reference(truth[0], truth[1], truth[2], mask)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    out.backward(gradient)
    expected.backward(gradient.double())
    for mine, theirs in zip(ours, truth, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=5e-2, rtol=5e-2)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ATTENDED)
def test_attention_with_lists_of_kernels(name: str) -> None:
    built_by_kernels(ATTENDED[name](), 700, device=DEVICE)
    BLOCK_MASKS.clear()
    with mock.patch.object(block_mask, "_calculated_lists", side_effect=AssertionError("no kernel")):
        assert_attends(ATTENDED[name](), 700)


@pytest.mark.usefixtures("fresh_compiler")
def test_steps_of_other_documents() -> None:
    """As in training on packed text: each step has documents of its own, and none compiles a kernel of lists."""
    chance = random.Random(0)
    made: set[Any] = set()
    with torch.no_grad():
        for step in range(20):
            cuts = sorted(chance.sample(range(1, 600), chance.randint(0, 12)))
            lengths = [stop - start for start, stop in zip([0, *cuts], [*cuts, 600], strict=True)]
            mask = masks.Document.from_lengths(lengths, DEVICE) & masks.Causal()
            q, k, v = (torch.randn(1, 2, 600, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
            out = am.attention(q, k, v, mask, backend="flex")
            torch.testing.assert_close(out.double(), am.reference(q, k, v, mask), atol=2e-2, rtol=2e-2)
            kernels.finish()
            if step == 2:
                made = set(kernels._made)
    assert made == set(kernels._made)


def test_a_failing_kernel_leaves_lists_exact() -> None:
    """What cannot be compiled is said, and built by the calculus."""
    mask = masks.BlockCausal(block=37) & ~masks.WindowSymmetric(radius=11)
    want = torch_create_block_mask(mask.mask_mod(), 1, 1, 700, 700, DEVICE)
    with (
        mock.patch("attn_mods.fused.planes.source_of", side_effect=ValueError("no such register")),
        pytest.warns(RuntimeWarning, match="its kernel could not be compiled"),
    ):
        built = [mask.block_mask(700, device=DEVICE)]
        kernels.finish()
    built.append(mask.block_mask(700, device=DEVICE))
    for got in built:
        want.mask_mod = got.mask_mod
        assert_same_block_mask(got, want)
