"""Structure facts on a GPU: true ones change no bit of torch's Triton kernels, wrong ones change the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

import attn_mods as am
from attn_mods import Recipe, masks
from attn_mods.backends import Needs, Shapes
from attn_mods.backends.structure_options import structure_options
from attn_mods.mask import Mask

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("fresh_compiler"),
]

# The same tiles with and without the facts: other tiles would add up in another order.
TILES = {f"BLOCK_{side}": 64 for side in ("M", "N", "M1", "N1", "M2", "N2")}
SAFE, ROWS, BACKWARD = "fwd_ROWS_GUARANTEED_SAFE", "fwd_BLOCKS_ARE_CONTIGUOUS", "bwd_BLOCKS_ARE_CONTIGUOUS"
TRAINING = Needs(input_gradients=True, lse=True)


def inputs(q_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the gradient of the output."""
    lengths = (q_len, kv_len, kv_len, q_len)
    q, k, v, gradient = (torch.randn(1, 2, n, 64, device="cuda", dtype=torch.bfloat16) for n in lengths)
    return q, k, v, gradient


def forward_and_backward(mask: Mask, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> list[Tensor]:
    """out, lse and the gradients of q, k and v, by kernels compiled with these options."""
    *qkv, gradient = tensors
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    q, k, v = leaves
    block_mask = mask.placed_block_mask(q.shape[2], k.shape[2], device="cuda")
    compiled: Any = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    kernel_options = {**TILES, **options}
    out, aux = compiled(q, k, v, block_mask=block_mask, kernel_options=kernel_options, return_aux=AuxRequest(lse=True))
    out.backward(gradient)
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [out.detach(), aux.lse.detach(), *gradients]


@pytest.mark.parametrize(
    ("mask", "length", "facts"),
    [
        (masks.Full(), 1024, {SAFE, ROWS, BACKWARD}),
        (masks.Full(), 700, {SAFE, ROWS, BACKWARD}),
        (masks.Causal(), 1024, {SAFE, ROWS, BACKWARD}),
        (masks.Causal(), 700, {SAFE, ROWS}),
        (masks.SlidingWindow(100), 1024, {ROWS, BACKWARD}),
        (masks.SlidingWindow(100), 700, {ROWS, BACKWARD}),
    ],
    ids=lambda value: getattr(value, "name", None) or (str(value) if isinstance(value, int) else ""),
)
def test_true_facts_change_no_bit(mask: Mask, length: int, facts: set[str]) -> None:
    tensors = inputs(length, length)
    shapes = Shapes.of(*tensors[:3])
    options = structure_options(Recipe.of(mask), shapes, torch.device("cuda"), TRAINING, ())
    assert options.keys() == facts
    names = ("out", "lse", "dq", "dk", "dv")
    both = (forward_and_backward(mask, tensors, each) for each in (options, {}))
    for name, told, untold in zip(names, *both, strict=True):
        assert bool(told.isfinite().all()), name
        assert torch.equal(told, untold), name


def test_a_gap_is_not_read() -> None:
    """Rows of this window list two partial blocks, full ones, and another partial block."""
    tensors = inputs(1024, 1024)
    wrong, right = (
        forward_and_backward(masks.SlidingWindow(300), tensors, {"BLOCKS_ARE_CONTIGUOUS": told})
        for told in (True, False)
    )
    for name, told, untold in zip(("out", "lse", "dq", "dk", "dv"), wrong, right, strict=True):
        assert not torch.allclose(told, untold, atol=1e-2), name


def test_a_key_for_every_query_is_not_enough() -> None:
    """Query 127 keeps keys 0 to 127, a full block; the partial block read before it begins with key 128."""
    mask = masks.Causal().shift(q=127)
    tensors = inputs(256, 512)
    wrong, right = (
        forward_and_backward(mask, tensors, {"fwd_ROWS_GUARANTEED_SAFE": told})[0] for told in (True, False)
    )
    assert bool(wrong[:, :, 0].isnan().all())
    assert bool(right.isfinite().all())


def test_attention_is_right_with_its_own_facts() -> None:
    q, k, v, gradient = inputs(700, 700)
    ours = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = am.attention(ours[0], ours[1], ours[2], masks.Causal(), backend="flex")
    out.backward(gradient)
    truth = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    expected = am.reference(truth[0], truth[1], truth[2], masks.Causal())
    expected.backward(gradient.double())
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    for mine, theirs in zip(ours, truth, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=5e-2, rtol=5e-2)
