"""flex: compiled flex_attention on this CPU, against the float64 reference."""

from __future__ import annotations

import math
import platform
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.nn.attention.flex_attention import BlockMask

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import flex, plan
from attn_mods.backends.base import Call, Needs
from attn_mods.backends.block_mask_cache import block_mask_for, of_any_length
from attn_mods.backends.sink_key import MaskWithSinkKey, ScoreWithSinkKey
from attn_mods.block_mask import lists_of
from tests.attention_inputs import assert_matches_reference, inputs

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_form_for_half_types_is_run_on_a_card_where_they_alone_are_returned(dtype: torch.dtype) -> None:
    q = torch.empty(1, dtype=dtype, device="meta")
    half = "flex" if dtype == torch.float32 else f"flex_{str(dtype).removeprefix('torch.')}"
    assert flex.Flex().form(q, return_lse=False) == half
    assert flex.Flex().form(q, return_lse=True) == "flex"
    assert flex.Flex().form(torch.empty(1, dtype=dtype), return_lse=False) == "flex"


def test_c56_groups_of_seven_with_a_window_per_query_head() -> None:
    windows = torch.arange(1, 15) * 9
    tensors = inputs(200, 300, batch=1, heads=14, key_heads=2)
    assert_matches_reference(tensors, masks.SlidingWindow(windows), "flex", q_offset=100)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "head_dim"),
    [
        *((1, 100, 8), (1, 100, 31), (1, 1000, 80), (1, 1000, 96)),
        *((5, 37, 31), (5, 37, 80), (33, 33, 8), (33, 33, 96)),
        *((257, 300, 8), (257, 300, 31), (257, 300, 80), (257, 300, 96)),
    ],
)
def test_c55_lengths_and_head_dimensions(q_len: int, kv_len: int, head_dim: int) -> None:
    """Each head dimension with one query, within a block and over several; each pair of lengths with two of them.

    All twenty combinations are one compilation each, more than a minute in total.
    """
    tensors = inputs(q_len, kv_len, head_dim=head_dim)
    assert_matches_reference(tensors, masks.Causal(), "flex", q_offset=kv_len - q_len, tolerance=1e-6)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX2 is of another processor")
@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("length", [8, 40, 56])
def test_keys_that_are_half_a_block_of_the_product(length: int, head_dim: int) -> None:
    """What a processor with AVX2 alone computes, on any that has it."""
    torch._dynamo.reset()
    plan._plans.clear()
    q, k, v = (_before_nan(tensor) for tensor in inputs(length, head_dim=head_dim))
    with inductor_config.patch({"cpp.simdlen": 256}):
        assert_matches_reference((q, k, v), Recipe(masks.Causal()), "flex")


def _before_nan(tensor: Tensor) -> Tensor:
    """The same in memory that goes on with NaN."""
    memory = torch.full((2 * tensor.numel(),), math.nan)
    memory[: tensor.numel()] = tensor.reshape(-1)
    return memory[: tensor.numel()].view(tensor.shape)


def test_a_negative_index_of_a_captured_tensor_counts_from_its_end() -> None:
    table = torch.rand(600)
    towards = torch.randint(-300, 300, (300,))
    mask = am.Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (table[kv_idx - q_idx] > 0.3) | (q_idx == kv_idx))
    score = am.Score.from_score_mod(lambda score, b, h, q_idx, kv_idx: score + table[towards[kv_idx]])
    assert_matches_reference(inputs(300, 300), Recipe(mask, score), "flex")


def test_c57_values_narrower_than_keys() -> None:
    tensors = inputs(40, head_dim=64, value_dim=32)
    assert am.attention(*tensors, masks.Causal(), backend="flex").shape == (2, 4, 40, 32)
    assert_matches_reference(tensors, masks.Causal(), "flex")


def test_c41_sink_is_one_more_key() -> None:
    length = 128  # the key of the sink begins a block of its own
    tensors = inputs(length)
    sink = torch.tensor([0.7, -2.0, -math.inf, 40.0])
    ids = torch.arange(length) // 50
    mask = masks.Document.from_ids(ids) & masks.SlidingWindow(9)
    empty = masks.Causal().shift(q=-7) & mask
    assert_matches_reference(tensors, Recipe(empty, scores.Softcap(3.0), sink=sink), "flex")


def test_sink_alone_and_one_for_all_heads() -> None:
    assert_matches_reference(inputs(40), Recipe(sink=torch.tensor([1.5])), "flex")


def test_sinks_do_not_crowd_out_other_scores() -> None:
    score = scores.Alibi(num_heads=4)
    for sink in torch.randn(3, 4):
        assert_matches_reference(inputs(40), Recipe(score=score, sink=sink), "flex")
    assert [key for key in flex._score_mods if "ScoreWithSinkKey" in str(key)] == []
    assert ("flex", score.key()) in flex._score_mods


def test_key_of_the_sink_in_dense_form() -> None:
    mask = MaskWithSinkKey(masks.Causal(), 6)
    assert torch.equal(mask.dense(6, 7)[:, :6], masks.Causal().dense(6, 6))
    assert bool(mask.dense(6, 7)[:, 6].all())
    sink = torch.tensor([1.0, 2.0])
    score = ScoreWithSinkKey(scores.Softcap(2.0), sink, 6)
    dense = score.dense(torch.ones(1, 2, 6, 7), torch.arange(6), torch.arange(7))
    assert torch.equal(dense[0, :, 3, 6], sink)
    torch.testing.assert_close(dense[0, 0, 3, 5], torch.tanh(torch.tensor(0.5)) * 2)


def test_parameters_are_read_without_gradients() -> None:
    bias = torch.nn.Parameter(torch.linspace(-1, 1, 4))
    q, k, v = (tensor.requires_grad_() for tensor in inputs(40))
    recipe = Recipe(masks.Causal(), scores.HeadBias(bias))
    with torch.no_grad():
        assert am.explain(q, k, v, recipe).chosen == "flex"
    assert_matches_reference((q, k, v), recipe, "flex")
    with torch.no_grad():
        bias.mul_(-1)
    assert_matches_reference((q, k, v), recipe, "flex")


@pytest.mark.parametrize(
    ("arguments", "dtype", "trains", "reason"),
    [
        ({"return_lse": True}, torch.float32, False, "returns no lse on a CPU"),
        ({}, torch.float64, False, "has no kernel for torch.float64"),
        ({}, torch.float32, True, "no gradients on a CPU; training there goes through eager"),
    ],
    ids=["lse", "float64", "training"],
)
def test_refusals(arguments: dict[str, bool], dtype: torch.dtype, trains: bool, reason: str) -> None:
    q, k, v = inputs(8, dtype=dtype)
    with pytest.raises(ValueError, match=rf"causal: .*flex: .*{reason}"):
        am.attention(q.requires_grad_(trains), k, v, masks.Causal(), backend="flex", **arguments)  # type: ignore[call-overload]


def test_half_type() -> None:
    tensors = inputs(200, dtype=torch.bfloat16)
    recipe = Recipe(masks.Causal(), scores.Alibi(num_heads=4))
    expected = am.reference(*tensors, recipe)
    out, eager = (am.attention(*tensors, recipe, backend=name) for name in ("flex", "eager"))
    assert out.dtype == torch.bfloat16
    allowed = 2 * float((eager.double() - expected).abs().max())
    assert float((out.double() - expected).abs().max()) <= allowed


def test_invariant_rows_do_not_depend_on_padding() -> None:
    long = inputs(256, dtype=torch.bfloat16)
    short = tuple(tensor[:, :, :192].contiguous() for tensor in long)
    runs = [am.attention(*tensors, masks.Causal(), backend="flex", invariant=True) for tensors in (long, short)]
    assert torch.equal(runs[0][:, :, :192], runs[1])
    built = block_mask_for(masks.Causal(), 256, 256, CPU, separate_full_blocks=False)
    assert built.full_kv_num_blocks is None


class TestBlockMaskCache:
    def test_equal_masks_share_one(self) -> None:
        first, second = (block_mask_for(masks.SlidingWindow(5), 300, 300, CPU) for _ in range(2))
        assert first is second
        assert block_mask_for(masks.SlidingWindow(6), 300, 300, CPU) is not first
        assert block_mask_for(masks.SlidingWindow(5), 300, 301, CPU) is not first

    def test_c6_a_tensor_changed_in_place_rebuilds(self) -> None:
        window = torch.tensor(2)
        mask = masks.SlidingWindow(window)
        tensors = inputs(384)
        assert_matches_reference(tensors, mask, "flex")
        window.fill_(384)
        assert_matches_reference(tensors, mask, "flex")

    def test_c6_a_tensor_inside_a_users_rule_changed_in_place_rebuilds(self) -> None:
        window = torch.tensor(2)
        mask = am.Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (q_idx - kv_idx < window))
        before = block_mask_for(mask, 384, 384, CPU)
        window.fill_(384)
        after = block_mask_for(mask, 384, 384, CPU)
        assert int(after.full_kv_num_blocks.sum()) > int(before.full_kv_num_blocks.sum())  # type: ignore[union-attr]

    def test_offset_tensor_that_counts_up(self) -> None:
        offset = torch.tensor(0)
        built = []
        for _ in range(3):
            built.append(block_mask_for(masks.Causal().place(1, 300, offset), 1, 300, CPU))
            offset.add_(128)
        assert [int(each.kv_num_blocks + each.full_kv_num_blocks) for each in built] == [1, 2, 3]

    def test_inference_tensors_are_never_trusted(self) -> None:
        with torch.inference_mode():
            window = torch.tensor(2)
            mask = masks.SlidingWindow(window)
            first = block_mask_for(mask, 300, 300, CPU)
            window.fill_(300)
            assert not torch.equal(block_mask_for(mask, 300, 300, CPU).kv_num_blocks, first.kv_num_blocks)


@pytest.mark.parametrize("length", [40, 300])
def test_lists_made_in_inference_mode_serve_a_backward_pass(length: int) -> None:
    with torch.inference_mode():
        built = block_mask_for(masks.SlidingWindow(7), length, length, CPU)
        both = lists_of(built) + lists_of(of_any_length(built))
    assert not any(each.is_inference() for each in both)


def test_lists_of_a_mask_are_block_masks() -> None:
    assert isinstance(block_mask_for(masks.Causal(), 40, 40, CPU), BlockMask)


@pytest.mark.parametrize(
    ("q_len", "key_heads", "options", "expected"),
    [
        (64, 2, None, None),
        (65, 2, None, {"FORCE_USE_FLEX_ATTENTION": True}),
        (65, 2, {"BLOCK_M": 64}, {"FORCE_USE_FLEX_ATTENTION": True, "BLOCK_M": 64}),
        (65, 2, {"BACKEND": "TRITON_DECODE"}, {"BACKEND": "TRITON_DECODE"}),
        (127, 4, None, None),
    ],
)
def test_queries_that_overfill_the_decoding_kernel_go_to_the_main_one(
    q_len: int, key_heads: int, options: dict[str, Any] | None, expected: dict[str, Any] | None
) -> None:
    q, k, v = (tensor.to("meta") for tensor in inputs(q_len, key_heads=key_heads))
    call = Call(q, k, v, Recipe(masks.Causal()), Needs(), kernel_options=options)
    assert flex.FLEX.kernel_options(call, masks.Causal().block_mask(q_len)) == expected
