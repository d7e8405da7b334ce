"""flex: compiled flex_attention on this CPU, against the float64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import block_mask_cache, flex
from attn_mods.backends.block_mask_cache import MOST_BLOCK_MASKS, _cache, block_mask_for
from attn_mods.backends.sink_key import MaskWithSinkKey, ScoreWithSinkKey
from attn_mods.block_mask import list_bytes
from tests.attention_inputs import assert_matches_reference, inputs

CPU = torch.device("cpu")


def test_c56_groups_of_seven_with_a_window_per_query_head() -> None:
    windows = torch.arange(1, 15) * 9
    tensors = inputs(200, 300, batch=1, heads=14, key_heads=2)
    assert_matches_reference(tensors, masks.SlidingWindow(windows), "flex", q_offset=100)


@pytest.mark.parametrize("q_len, kv_len", [(1, 100), (1, 1000), (5, 37), (33, 33), (257, 300)])
def test_c55_lengths(q_len: int, kv_len: int) -> None:
    tensors = inputs(q_len, kv_len, head_dim=31)
    assert_matches_reference(tensors, masks.Causal(), "flex", q_offset=kv_len - q_len)


@pytest.mark.parametrize("head_dim", [8, 80, 96])
def test_c55_head_dimensions(head_dim: int) -> None:
    tensors = inputs(257, 300, batch=1, head_dim=head_dim)
    assert_matches_reference(tensors, masks.Causal(), "flex", q_offset=43)


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
    assert score.key() in flex._score_mods


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

    def test_what_is_never_found_again_is_not_kept(self) -> None:
        with torch.inference_mode():
            mask = masks.SlidingWindow(torch.tensor(2))
            before = list(_cache)
            block_mask_for(mask, 300, 300, CPU)
        assert list(_cache) == before

    def test_bounded_in_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = list_bytes(block_mask_for(masks.SlidingWindow(3), 2000, 2000, CPU))
        monkeypatch.setattr(block_mask_cache, "MOST_BYTES", 3 * one)
        _cache.clear()
        built = [block_mask_for(masks.SlidingWindow(window), 2000, 2000, CPU) for window in range(1, 6)]
        assert [any(held is each for held in _cache.values()) for each in built] == [False, False, True, True, True]
        monkeypatch.setattr(block_mask_cache, "MOST_BYTES", 1)
        newest = block_mask_for(masks.SlidingWindow(9), 2000, 2000, CPU)
        assert [held is newest for held in _cache.values()] == [True]

    def test_bounded(self) -> None:
        for window in range(1, MOST_BLOCK_MASKS + 9):
            block_mask_for(masks.SlidingWindow(window), 16, 16, CPU)
        assert len(_cache) == MOST_BLOCK_MASKS


def test_lists_of_a_mask_are_block_masks() -> None:
    assert isinstance(block_mask_for(masks.Causal(), 40, 40, CPU), BlockMask)
