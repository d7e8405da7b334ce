"""What every check has in common: values in messages, devices, whole numbers, offsets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, checks, masks, scores
from attn_mods.mask import Mask
from attn_mods.nn import Attention, KVCache
from tests.refusals import assert_refused

LARGEST = 2**31 - 1


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


META = torch.device("meta")


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (torch.tensor(3), "tensor(3, dtype=torch.int64)"),
        (torch.zeros(2, 3), "a tensor of shape (2, 3) and dtype torch.float32"),
        (torch.zeros((), device="meta"), "a tensor of shape () and dtype torch.float32 on the meta device"),
        (torch.eye(2).to_sparse(), "a tensor of dtype torch.float32 that is torch.sparse_coo"),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
        ([0] * 1000, "[" + "0, " * 39 + "0,... (list)"),
    ],
    ids=["one number", "tensor", "meta", "sparse", "array of several lines", "long list"],
)
def test_values_in_messages_are_short_and_on_one_line(value: object, described: str) -> None:
    assert checks.describe(value) == described


BUILDERS: dict[str, Callable[[Any], object]] = {
    "block_mask": lambda device: masks.Causal().block_mask(8, device=device),
    "create_block_mask": lambda device: am.create_block_mask(causal, None, None, 8, 8, device=device),
    "flex_kwargs": lambda device: Recipe(masks.Causal()).flex_kwargs(8, device=device),
    "flex_kwargs without a mask": lambda device: Recipe().flex_kwargs(8, device=device),
    "verify": lambda device: am.verify("causal", device=device, backends=["eager"]),
    "from_lengths": lambda device: masks.Document.from_lengths([3, 5], device),
    "SharedPrefix.from_lengths": lambda device: masks.SharedPrefix.from_lengths([3, 5], [-1, 0], device),
    "from_parents": lambda device: masks.TreeVerification.from_parents([-1, 0], 2, device),
    "tile_order": lambda device: masks.SlidingTile((4, 4), (2, 2), (1, 1)).tile_order(device),
}
DESCRIBERS: dict[str, Callable[[Any], object]] = {
    "nn.Attention": lambda device: Attention(32, 4, device=device),
    "KVCache": lambda device: KVCache(1, 2, 8, 8, device=device),
    "to": lambda device: scores.HeadBias(torch.zeros(4)).to(device),
}
NOT_HERE: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown": ("foo", ValueError, r"device must be one that holds tensors here, got 'foo' \(.*\); pass a device"),
    "float": (3.5, TypeError, r"device must be a torch\.device or the name of one, got 3\.5; pass a device"),
    "list": (["cpu"], TypeError, r"device must be a torch\.device or the name of one, got \['cpu'\]"),
    "bool": (True, TypeError, r"device must be a torch\.device or the name of one, got True"),
}
if not torch.cuda.is_available():
    no_card = r"device must be one that holds tensors here, got 'cuda' \(.*(CUDA|NVIDIA).*\)"
    NOT_HERE["no card"] = ("cuda", ValueError, no_card)


@pytest.mark.parametrize("wrong", NOT_HERE)
@pytest.mark.parametrize("name", [*BUILDERS, *DESCRIBERS])
def test_a_device_that_is_not_here(name: str, wrong: str) -> None:
    device, error, message = NOT_HERE[wrong]
    assert_refused(lambda: {**BUILDERS, **DESCRIBERS}[name](device), error, message)


@pytest.mark.parametrize("device", ["meta", META], ids=["text", "device"])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_device_without_values(name: str, device: str | torch.device) -> None:
    message = r"device must be one that holds values, got 'meta'; pass a device of this machine"
    assert_refused(lambda: BUILDERS[name](device), ValueError, message)


@pytest.mark.parametrize("name", DESCRIBERS)
def test_modules_and_scores_may_be_described_without_values(name: str) -> None:
    DESCRIBERS[name]("meta")


def test_the_default_device_is_checked_too() -> None:
    with META:
        assert_refused(lambda: masks.Causal().block_mask(8), ValueError, "device must be one that holds values")
        assert_refused(
            lambda: Recipe(masks.Causal()).flex_kwargs(8), ValueError, "device must be one that holds values"
        )


def test_flex_kwargs_for_another_device_than_the_scores() -> None:
    recipe = Recipe(masks.Causal(), scores.HeadBias(torch.zeros(4, device="meta")))
    message = r"causal with head_bias: its tensors must be on cpu, got meta; move them with \.to\(\"cpu\"\)"
    assert_refused(lambda: recipe.flex_kwargs(8, device="cpu"), ValueError, message)


OFFSETS: dict[str, tuple[Any, type[Exception], str]] = {
    "2^64": (2**64, ValueError, rf"must lie in -{LARGEST} \.\. {LARGEST}, got {2**64}"),
    "2^62": (2**62, ValueError, rf"must lie in -{LARGEST} \.\. {LARGEST}, got {2**62}"),
    "2^31": (2**31, ValueError, rf"must lie in -{LARGEST} \.\. {LARGEST}, got {2**31}"),
    "-2^31": (-(2**31), ValueError, rf"must lie in -{LARGEST} \.\. {LARGEST}, got {-(2**31)}"),
    "tensor of 2^62": (torch.tensor(2**62), ValueError, rf"must lie in .*, got {2**62}"),
    "float": (1.0, TypeError, r"must be an integer, got 1\.0; pass an int, a 0-d or a one-element integer tensor"),
    "bool": (True, TypeError, r"must be an integer, got True"),
    "text": ("3", TypeError, r"must be an integer, got '3'"),
    "list": ([3], TypeError, r"must be an integer, got \[3\]"),
    "array": (np.array([1, 2]), TypeError, r"must be an integer, got array\(\[1, 2\]\)"),
    "float tensor": (torch.tensor(1.0), TypeError, r"must be an integer, got tensor\(1\.0, dtype=torch\.float32\)"),
    "bool tensor": (torch.tensor(True), TypeError, r"must be an integer, got tensor\(True, dtype=torch\.bool\)"),
    "two elements": (torch.tensor([1, 2]), ValueError, r"must be one number, got a tensor of shape \(2,\)"),
    "no element": (torch.zeros(0, dtype=torch.int64), ValueError, r"must be one number, got a tensor of shape \(0,\)"),
    "meta": (
        torch.zeros((), dtype=torch.int64, device="meta"),
        ValueError,
        r"must hold values, got .* on the meta",
    ),
    "sparse": (torch.ones(1, dtype=torch.int64).to_sparse(), ValueError, r"must hold values, got .* torch\.sparse_coo"),
}
Q = torch.zeros(1, 1, 8, 4)
OFFSET_TAKERS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "attention": ("causal: q_offset", lambda offset: am.attention(Q, Q, Q, masks.Causal(), q_offset=offset)),
    "attention with a score": (
        "alibi: q_offset",
        lambda offset: am.attention(Q, Q, Q, scores.Alibi(1), q_offset=offset),
    ),
    "explain": ("causal: q_offset", lambda offset: am.explain(Q, Q, Q, masks.Causal(), q_offset=offset)),
    "reference": ("causal: q_offset", lambda offset: am.reference(Q, Q, Q, masks.Causal(), q_offset=offset)),
    "block_mask": ("causal: q_offset", lambda offset: masks.Causal().block_mask(8, q_offset=offset)),
    "flex_kwargs": ("causal: q_offset", lambda offset: Recipe(masks.Causal()).flex_kwargs(8, q_offset=offset)),
    "shift": ("causal: q", lambda offset: masks.Causal().shift(q=offset)),
    "shift of keys": ("causal: kv", lambda offset: masks.Causal().shift(kv=offset)),
    "shift of a score": ("alibi: q", lambda offset: scores.Alibi(1).shift(q=offset)),
    "shift of a recipe": ("causal: kv", lambda offset: Recipe(masks.Causal()).shift(kv=offset)),
}


@pytest.mark.parametrize("wrong", OFFSETS)
@pytest.mark.parametrize("taker", OFFSET_TAKERS)
def test_offsets_that_are_none(taker: str, wrong: str) -> None:
    (field, call), (offset, error, message) = OFFSET_TAKERS[taker], OFFSETS[wrong]
    assert_refused(lambda: call(offset), error, f"^{field} {message}")


@pytest.mark.parametrize("offset", [-3, torch.tensor(-3), -LARGEST], ids=str)
def test_queries_at_negative_positions_see_nothing(offset: Any) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    out, lse = am.attention(q, k, v, masks.Causal(), q_offset=offset, return_lse=True, backend="eager")
    hidden = min(8, -int(offset))
    assert not out[:, :, :hidden].any()
    assert bool((lse[:, :, :hidden] == -math.inf).all())
    assert bool(lse[:, :, hidden:].isfinite().all())


@pytest.mark.parametrize("offset", [1, torch.tensor(1), torch.tensor([1])], ids=["int", "0-d", "one element"])
def test_an_offset_beyond_what_parameters_describe(offset: Any) -> None:
    q = torch.randn(1, 1, 8, 4)
    for recipe in (masks.Document.from_lengths([3, 5]), scores.PairBias(torch.zeros(1, 1, 8, 8))):
        message = f"^{recipe.name}: the queries must end at or before position 8, got 9;"
        assert_refused(lambda part=recipe: am.attention(q, q, q, part, q_offset=offset), ValueError, message)
        assert_refused(lambda part=recipe: am.reference(q, q, q, part, q_offset=offset), ValueError, message)


SIZES: dict[str, Callable[[Any], object]] = {
    "q_len": lambda size: masks.Causal().block_mask(size),
    "kv_len": lambda size: masks.Causal().block_mask(8, size, q_offset=0),
    "B": lambda size: masks.Causal().block_mask(8, B=size),
    "H": lambda size: masks.Causal().block_mask(8, H=size),
    "q_len of a recipe": lambda size: Recipe(masks.Causal()).flex_kwargs(size),
    "kv_len of a recipe": lambda size: Recipe(masks.Causal()).flex_kwargs(8, size, q_offset=0),
    "Q_LEN": lambda size: am.create_block_mask(causal, None, None, size, 8, "cpu"),
    "KV_LEN": lambda size: am.create_block_mask(causal, None, None, 8, size, "cpu"),
    "B of a rule": lambda size: am.create_block_mask(causal, size, None, 8, 8, "cpu"),
    "H of a rule": lambda size: am.create_block_mask(causal, None, size, 8, 8, "cpu"),
}


@pytest.mark.parametrize("wrong", ["8", 8.0, True, [8], torch.tensor(8), -1, 2**62], ids=repr)
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_lists(name: str, wrong: Any) -> None:
    error = ValueError if type(wrong) is int else TypeError
    field = name.split(" ", maxsplit=1)[0]
    assert_refused(lambda: SIZES[name](wrong), error, f": {field} must be .*, got .*; pass ")


SWITCHES: dict[str, Callable[[Any], object]] = {
    "return_lse": lambda switch: am.attention(Q, Q, Q, return_lse=switch),
    "return_lse of explain": lambda switch: am.explain(Q, Q, Q, return_lse=switch),
    "return_lse of the reference": lambda switch: am.reference(Q, Q, Q, return_lse=switch),
    "invariant": lambda switch: am.attention(Q, Q, Q, invariant=switch),
    "separate_full_blocks": lambda switch: masks.Causal().block_mask(8, separate_full_blocks=switch),
    "separate_full_blocks of a rule": lambda switch: am.create_block_mask(
        causal, 1, 1, 8, 8, "cpu", separate_full_blocks=switch
    ),
    "compute_dq_write_order": lambda switch: am.create_block_mask(
        causal, 1, 1, 8, 8, "cpu", compute_dq_write_order=switch
    ),
    "bias": lambda switch: Attention(32, 4, bias=switch),
}


@pytest.mark.parametrize("wrong", [1, "yes", None, torch.tensor(True), np.True_], ids=repr)
@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_bools(name: str, wrong: Any) -> None:
    message = f": {name.split(' ', maxsplit=1)[0]} must be True or False, got .*; pass"
    assert_refused(lambda: SWITCHES[name](wrong), TypeError, message)


LENGTHS: dict[str, tuple[Any, type[Exception], str]] = {
    "None": (None, TypeError, "lengths must be a sequence of ints or an integer tensor, got None"),
    "number": (3, TypeError, "lengths must be a sequence of ints or an integer tensor, got 3"),
    "text": ("34", TypeError, "lengths must be a sequence of ints or an integer tensor, got '34'"),
    "bytes": (b"34", TypeError, "lengths must be"),
    "dict": ({"a": 1}, TypeError, "lengths must be a sequence of ints or an integer tensor, got {'a': 1}"),
    "iterator": (iter([3, 5]), TypeError, "lengths must be a sequence of ints or an integer tensor"),
    "list of texts": (["a"], TypeError, r"lengths must be a sequence of ints or an integer tensor, got \['a'\]"),
    "ragged": ([3, [4]], TypeError, r"lengths must be a sequence of ints or an integer tensor, got \[3, \[4\]\]"),
    "nested": ([[1, 2]], ValueError, r"lengths must have 1 dimensions, got a tensor of shape \(1, 2\)"),
    "0-d": (torch.tensor(3), ValueError, r"lengths must have 1 dimensions, got tensor\(3"),
    "floats": ([1.5, 2.0], TypeError, "lengths must be an integer tensor, got .* torch.float32"),
    "array of floats": (np.array([3.0, 5.0]), TypeError, "lengths must be an integer tensor, got .* torch.float64"),
    "bools": ([True, False], TypeError, "lengths must be an integer tensor, got .* torch.bool"),
    "beyond int64": ([2**70], TypeError, rf"lengths must be a sequence of ints .*, got \[{2**70}\]"),
    "beyond int32": ([3, 2**40], ValueError, rf"lengths must be <= {LARGEST}, got a largest value of {2**40}"),
    "sum beyond int32": ([2**30, 2**30], ValueError, rf"the sum of lengths must be <= {LARGEST}, got {2**31}; split"),
    "empty": ([], ValueError, r"lengths must not be empty, got \[\]"),
    "negative": ([-1, 3], ValueError, "lengths must be >= 0, got a smallest value of -1"),
    "meta": (
        torch.zeros(2, dtype=torch.int64, device="meta"),
        ValueError,
        "lengths must hold values, got .* on the",
    ),
}


@pytest.mark.parametrize("wrong", LENGTHS)
def test_lengths_that_are_none(wrong: str) -> None:
    lengths, error, message = LENGTHS[wrong]
    assert_refused(lambda: masks.Document.from_lengths(lengths), error, f"^document: {message}")
    assert_refused(lambda: masks.SharedPrefix.from_lengths(lengths, [-1, -1]), error, f"^shared_prefix: {message}")


@pytest.mark.parametrize(
    "lengths", [[3, 0, 5], (3, 0, 5), np.array([3, 0, 5]), torch.tensor([3, 0, 5], dtype=torch.int16)], ids=repr
)
def test_lengths_in_every_form(lengths: Any) -> None:
    assert masks.Document.from_lengths(lengths).cu_seqlens.tolist() == [0, 3, 3, 8]


@pytest.mark.parametrize("wrong", [None, "01", [0, 1], 3, torch.zeros(8), torch.zeros(1, 1, 8).long()], ids=repr)
def test_ids_and_boundaries_that_are_none(wrong: Any) -> None:
    error = ValueError if isinstance(wrong, Tensor) and wrong.dtype == torch.int64 else TypeError
    assert_refused(lambda: masks.Document.from_ids(wrong), error, "^document: ids must .*; pass one document number")
    for make, name in (
        (masks.document_causal, "document"),
        (masks.Causal().per_document, "per_document"),
        (scores.Alibi(4).per_document, "per_document"),
    ):
        if wrong is None and name == "document":
            neither = "^document: exactly one of cu_seqlens and ids must be given, got neither"
            assert_refused(lambda: masks.Document(None), ValueError, neither)
        else:
            message = f"^{name}: cu_seqlens must .*; pass the running sum"
            assert_refused(lambda build=make: build(wrong), error, message)


NUMBERS: dict[str, Callable[[Any], object]] = {
    "cap": scores.Softcap,
    "scale": lambda number: Recipe(scale=number),
    "scaling": scores.LogNScale,
    "bias": lambda number: scores.LogNScale(1.0, number),
}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e39, 2**2000, -(2**2000)], ids=lambda n: f"{n}"[:9])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_float32_does_not_hold(name: str, wrong: Any) -> None:
    assert_refused(lambda: NUMBERS[name](wrong), ValueError, f": {name} must be finite in float32, got .*; pass")


@pytest.mark.parametrize("wrong", ["3", True, 1j, [1.0], np.float32(3)], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_none(name: str, wrong: Any) -> None:
    assert_refused(lambda: NUMBERS[name](wrong), TypeError, f": {name} must be a number, got .*; pass")


@pytest.mark.parametrize("cap", [0, -1.0, 1e-39], ids=str)
def test_a_cap_that_is_not_positive_in_float32(cap: float) -> None:
    assert_refused(lambda: scores.Softcap(cap), ValueError, "^softcap: cap must be positive, also in float32, got")


def test_integers_serve_as_numbers() -> None:
    assert scores.Softcap(50).key() == scores.Softcap(50.0).key()
    assert Recipe(scale=2**64).scale == 2.0**64


MAKERS: dict[str, Callable[[Any], object]] = {
    "window": masks.SlidingWindow,
    "lengths": masks.KeyPadding,
    "start": masks.LeftPadding,
    "prefix": masks.PrefixLm,
    "block": masks.BlockCausal,
    "chunk": masks.ChunkedCausal,
    "origin": lambda number: masks.ChunkedCausal(4, number),
    "radius": masks.WindowSymmetric,
    "left": lambda number: masks.WindowAsymmetric(number, 0),
    "dilation": lambda number: masks.DilatedWindow(3, number),
    "tokens": lambda number: masks.Area(number, 1),
    "canvas": lambda number: masks.Neighborhood((4, number), (2, 2)),
    "q_block": lambda number: masks.SelectedBlocks(torch.ones(1, 1, 2, 2, dtype=torch.bool), number, 4),
    "padding": lambda number: masks.Document.from_ids(torch.zeros(8, dtype=torch.int64), number),
    "num_heads": scores.Alibi,
    "max_distance": lambda number: scores.T5Bucket(torch.zeros(4, 32), max_distance=number),
    "minimum": lambda number: scores.LogNScale(minimum=number),
}


@pytest.mark.parametrize("wrong", [2**31, 2**62, 2**64], ids=lambda n: f"2^{n.bit_length() - 1}")
@pytest.mark.parametrize("name", MAKERS)
def test_integers_that_kernels_cannot_count(name: str, wrong: int) -> None:
    assert_refused(lambda: MAKERS[name](wrong), ValueError, f": {name} must be <= {LARGEST}, got {wrong};")


@pytest.mark.parametrize("name", ["window", "lengths", "chunk", "radius"])
def test_integers_of_tensors_that_kernels_cannot_count(name: str) -> None:
    message = f": {name} must be <= {LARGEST}, got a largest value of {2**40};"
    assert_refused(lambda: MAKERS[name](torch.tensor(2**40)), ValueError, message)


@pytest.mark.parametrize(
    "mask",
    [
        masks.DilatedWindow(LARGEST, 3),
        masks.DilatedWindow(LARGEST, LARGEST, causal=False),
        masks.SelectedBlocks(torch.ones(1, 1, 1, 1, dtype=torch.bool), LARGEST, LARGEST),
        masks.TreeVerification(torch.eye(8, dtype=torch.bool), torch.tensor(LARGEST)),
    ],
    ids=lambda mask: mask.name,
)
def test_the_largest_integers_take_no_more_memory_than_the_matrix(mask: Mask) -> None:
    dense = mask.dense(8, 8)
    rule = torch.stack([torch.stack([_at(mask, i, j) for j in range(8)]) for i in range(8)])
    assert torch.equal(dense.reshape(8, 8), rule)


def _at(mask: Mask, i: int, j: int) -> Tensor:
    zero = torch.tensor(0)
    return mask.mask_mod()(zero, zero, torch.tensor(i), torch.tensor(j))


def test_a_distance_that_is_too_far_to_list() -> None:
    message = rf"^t5_bucket: max_distance must be <= {2**20}, got {2**20 + 1}; pass the distance"
    assert_refused(lambda: scores.T5Bucket(torch.zeros(4, 32), max_distance=2**20 + 1), ValueError, message)
