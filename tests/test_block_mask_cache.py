"""BlockMaskCache: what hits, what misses, what is held and for how long."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

import attn_mods as am
from attn_mods import BlockMaskCache, masks
from attn_mods.block_mask import list_bytes, lists_of
from attn_mods.mask import Mask
from tests.block_mask_equality import assert_same_block_mask
from tests.refusals import assert_refused

LENGTH = 300


def assert_equal(got: BlockMask, expected: BlockMask) -> None:
    assert (got.seq_lengths, got.BLOCK_SIZE) == (expected.seq_lengths, expected.BLOCK_SIZE)
    for mine, theirs in zip(lists_of(got), lists_of(expected), strict=True):
        assert torch.equal(mine, theirs)


def counts(cache: BlockMaskCache) -> tuple[int, int, int]:
    return len(cache), cache.hits, cache.misses


def blocks_of_one_row(block_mask: BlockMask) -> int:
    """How many blocks a single row lists, partial or full."""
    assert block_mask.full_kv_num_blocks is not None
    return int(block_mask.kv_num_blocks + block_mask.full_kv_num_blocks)


def test_arguments_are_those_of_a_masks_own_method() -> None:
    of_mask = list(inspect.signature(Mask.block_mask).parameters.values())[1:]
    of_cache = list(inspect.signature(BlockMaskCache.block_mask).parameters.values())[2:]
    assert of_cache == of_mask


def test_masks_made_anew_share_one() -> None:
    cache = BlockMaskCache()
    window, documents = torch.tensor(70), torch.tensor([0, 100, LENGTH])
    built = [
        cache.block_mask(masks.SlidingWindow(window) & masks.Document(documents) & masks.Causal(), LENGTH)
        for _ in range(3)
    ]
    assert built[0] is built[1] is built[2]
    assert counts(cache) == (1, 2, 1)
    assert_equal(built[0], (masks.SlidingWindow(70) & masks.Document(documents)).block_mask(LENGTH))


BASE: dict[str, Any] = {"q_len": LENGTH, "kv_len": LENGTH, "q_offset": 0}
CHANGES: dict[str, dict[str, Any]] = {
    "q_len": {"q_len": 200},
    "kv_len": {"kv_len": 400},
    "B": {"B": 2},
    "H": {"H": 3},
    "block_size": {"block_size": 64},
    "block_size of the keys": {"block_size": (128, 64)},
    "q_offset": {"q_offset": 9},
    "q_offset, a tensor": {"q_offset": torch.tensor(9)},
    "separate_full_blocks": {"separate_full_blocks": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_argument_counts(name: str) -> None:
    cache = BlockMaskCache()
    cache.block_mask(masks.Causal(), **BASE)
    arguments = {**BASE, **CHANGES[name]}
    first, second = (cache.block_mask(masks.Causal(), **arguments) for _ in range(2))
    assert first is second
    assert counts(cache) == (2, 1, 2)
    assert_equal(first, masks.Causal().block_mask(**arguments))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"q_len": LENGTH}, {"q_len": LENGTH, "kv_len": LENGTH}),
        ({"q_len": LENGTH}, {"q_len": np.int64(LENGTH)}),
        ({"q_len": LENGTH}, {"q_len": LENGTH, "device": "cpu"}),
        ({"q_len": LENGTH, "device": "cpu"}, {"q_len": LENGTH, "device": torch.device("cpu")}),
        ({"q_len": LENGTH, "block_size": 64}, {"q_len": LENGTH, "block_size": (64, 64)}),
        ({"q_len": LENGTH, "block_size": 64}, {"q_len": LENGTH, "block_size": [64, 64]}),
    ],
    ids=["kv_len left out", "NumPy's integer", "device left out", "device by name", "pair of blocks", "list of blocks"],
)
def test_two_ways_to_say_the_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    cache = BlockMaskCache()
    assert cache.block_mask(masks.Causal(), **first) is cache.block_mask(masks.Causal(), **second)


@pytest.mark.parametrize("other", [masks.SlidingWindow(6), masks.Causal(), masks.SlidingWindow(5).shift(q=0, kv=1)])
def test_other_masks_miss(other: Mask) -> None:
    cache = BlockMaskCache()
    kept = cache.block_mask(masks.SlidingWindow(5), LENGTH)
    assert cache.block_mask(other, LENGTH) is not kept
    assert counts(cache) == (2, 0, 2)


def test_a_parameter_changed_in_place_misses() -> None:
    cache, window = BlockMaskCache(), torch.tensor(2)
    before = cache.block_mask(masks.SlidingWindow(window), LENGTH)
    window.fill_(LENGTH)
    after = cache.block_mask(masks.SlidingWindow(window), LENGTH)
    assert_equal(after, masks.Causal().block_mask(LENGTH))
    assert not torch.equal(after.kv_num_blocks, before.kv_num_blocks)


def test_a_tensor_swapped_for_another_misses() -> None:
    cache, window = BlockMaskCache(), torch.tensor([2])
    before = cache.block_mask(near(window), LENGTH)
    torch.utils.swap_tensors(window, torch.tensor([LENGTH]))
    after = cache.block_mask(near(window), LENGTH)
    assert after is not before
    assert_equal(after, masks.Causal().block_mask(LENGTH))


def test_another_default_dtype_misses() -> None:
    far = 100_000_007  # neighbours are equal in float32, not in float64
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (q_idx + far) / 7 != (kv_idx + far) / 7)
    cache, sizes = BlockMaskCache(), (1, 1, 64, 64, "cpu", 16)
    single = cache.block_mask(mask, 64, B=1, H=1, block_size=16)
    assert_same_block_mask(single, torch_create_block_mask(mask.mask_mod(), *sizes))
    torch.set_default_dtype(torch.float64)
    try:
        double = cache.block_mask(mask, 64, B=1, H=1, block_size=16)
        assert_same_block_mask(double, torch_create_block_mask(mask.mask_mod(), *sizes))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not torch.equal(single.kv_num_blocks, double.kv_num_blocks)


def test_an_offset_changed_in_place_misses() -> None:
    cache, offset = BlockMaskCache(), torch.tensor([0])
    seen = []
    for _ in range(3):
        built = cache.block_mask(masks.Causal(), 1, LENGTH, q_offset=offset)
        assert built is cache.block_mask(masks.Causal(), 1, LENGTH, q_offset=offset)
        seen.append(blocks_of_one_row(built))
        offset.add_(128)
    assert seen == [1, 2, 3]


def test_a_new_tensor_of_equal_values_misses() -> None:
    cache = BlockMaskCache()
    for _ in range(2):
        cache.block_mask(masks.SlidingWindow(torch.tensor(5)), LENGTH)
    assert counts(cache) == (2, 0, 2)


def test_a_tensor_lives_as_long_as_its_block_mask() -> None:
    cache = BlockMaskCache(size=1)
    window = torch.tensor(5)
    alive = weakref.ref(window)
    cache.block_mask(masks.SlidingWindow(window), LENGTH)
    del window
    gc.collect()
    assert alive() is not None
    cache.block_mask(masks.Causal(), LENGTH)
    gc.collect()
    assert alive() is None


def near(window: Any) -> Mask:
    """A user's rule made anew, of one code."""

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        is_near: Tensor = q_idx - kv_idx < window[0]
        return is_near & (kv_idx <= q_idx)

    return Mask.from_mask_mod(rule)


def test_a_users_rule_made_anew_hits_until_its_tensor_changes() -> None:
    cache, window = BlockMaskCache(), torch.tensor([2])
    first, second = (cache.block_mask(near(window), LENGTH) for _ in range(2))
    assert first is second
    window.fill_(LENGTH)
    assert_equal(cache.block_mask(near(window), LENGTH), masks.Causal().block_mask(LENGTH))


def of_array() -> tuple[Mask, Callable[[], object]]:
    array = np.array([2])
    return near(array), lambda: array.fill(LENGTH)


def of_inference_tensor() -> tuple[Mask, Callable[[], object]]:
    with torch.inference_mode():
        window = torch.tensor(2)

    def change() -> None:
        with torch.inference_mode():
            window.fill_(LENGTH)

    return masks.SlidingWindow(window), change


@pytest.mark.parametrize("make", [of_array, of_inference_tensor])
def test_what_cannot_be_watched_is_built_anew_and_not_held(make: Callable[[], tuple[Mask, Any]]) -> None:
    mask, change = make()
    cache = BlockMaskCache()
    first, second = (cache.block_mask(mask, LENGTH) for _ in range(2))
    assert first is not second
    change()
    assert_equal(cache.block_mask(mask, LENGTH), masks.Causal().block_mask(LENGTH))
    assert counts(cache) == (0, 0, 3)


def test_an_offset_that_cannot_be_watched() -> None:
    with torch.inference_mode():
        offset = torch.tensor(0)
        cache = BlockMaskCache()
        cache.block_mask(masks.Causal(), 1, LENGTH, q_offset=offset)
        offset.fill_(LENGTH - 1)
        built = cache.block_mask(masks.Causal(), 1, LENGTH, q_offset=offset)
    assert blocks_of_one_row(built) == 3
    assert counts(cache) == (0, 0, 2)


def test_a_parameter_changed_while_the_lists_are_built_is_not_held() -> None:
    cache, window = BlockMaskCache(), torch.tensor([2])

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx - kv_idx < window[0])

    def build() -> BlockMask:
        built = am.create_block_mask(rule, None, None, LENGTH, LENGTH, device="cpu")
        window.fill_(LENGTH)
        return built

    mask = Mask.from_mask_mod(rule)
    cache.held_or_built(mask.key, build)
    assert counts(cache) == (0, 0, 1)


def test_a_hit_makes_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockMaskCache()
    kept = cache.block_mask(masks.SlidingWindow(5), 64, LENGTH, q_offset=7)

    def unexpected(*arguments: Any) -> Any:
        raise AssertionError("a hit must not come here")

    for name in ("mask_mod", "place", "placed_block_mask", "tile_states", "check_lengths"):
        monkeypatch.setattr(Mask, name, unexpected)
        monkeypatch.setattr(masks.SlidingWindow, name, unexpected)
    assert cache.block_mask(masks.SlidingWindow(5), 64, LENGTH, q_offset=7) is kept
    with pytest.raises(AssertionError, match="must not come here"):
        cache.block_mask(masks.SlidingWindow(6), 64, LENGTH, q_offset=7)


def windows_held(cache: BlockMaskCache) -> list[int]:
    """The windows whose BlockMasks are held, without changing their order."""
    return [key[0][1][2] for key in cache._held]  # type: ignore[index]


def test_the_least_recently_used_goes_first() -> None:
    cache = BlockMaskCache(size=3)
    for window in (1, 2, 3, 1, 4):
        cache.block_mask(masks.SlidingWindow(window), LENGTH)
    assert windows_held(cache) == [3, 1, 4]
    for window in (5, 1):
        cache.block_mask(masks.SlidingWindow(window), LENGTH)
    assert windows_held(cache) == [4, 5, 1]


def test_bounded_in_bytes_but_for_the_newest() -> None:
    one = list_bytes(masks.SlidingWindow(3).block_mask(2000))
    cache = BlockMaskCache(max_bytes=3 * one)
    for window in range(1, 6):
        cache.block_mask(masks.SlidingWindow(window), 2000)
        assert cache.bytes == min(window, 3) * one
    assert windows_held(cache) == [3, 4, 5]
    cache.block_mask(masks.Causal(), 8000)
    assert len(cache) == 1
    assert cache.bytes > cache.max_bytes


def test_bytes_of_another_device_do_not_count() -> None:
    one = list_bytes(masks.Causal().block_mask(2000))
    cache = BlockMaskCache(max_bytes=2 * one)
    elsewhere = masks.Causal().block_mask(2000).to("meta")
    cache.held_or_built(lambda: "elsewhere", lambda: elsewhere)
    for window in (1, 2, 3):
        cache.block_mask(masks.SlidingWindow(window), 2000)
    assert len(cache) == 3
    assert cache.bytes == 2 * one + list_bytes(elsewhere) > cache.max_bytes
    assert cache.held_or_built(lambda: "elsewhere", lambda: masks.Causal().block_mask(1)) is elsewhere


def test_cleared() -> None:
    cache = BlockMaskCache()
    kept = cache.block_mask(masks.Causal(), LENGTH)
    assert cache.block_mask(masks.Causal(), LENGTH) is kept
    cache.clear()
    assert (*counts(cache), cache.bytes) == (0, 0, 0, 0)
    assert cache.block_mask(masks.Causal(), LENGTH) is not kept


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))],
    ids=["copy", "deep", "pickle"],
)
def test_a_copy_is_empty(duplicate: Callable[[BlockMaskCache], BlockMaskCache]) -> None:
    cache = BlockMaskCache(size=3, max_bytes=1000)
    cache.block_mask(masks.Causal(), LENGTH)
    other = duplicate(cache)
    assert (other.size, other.max_bytes, *counts(other)) == (3, 1000, 0, 0, 0)
    other.block_mask(masks.Causal(), LENGTH)
    assert counts(cache) == (1, 0, 1)


def test_lists_made_in_inference_mode_serve_a_backward_pass() -> None:
    cache = BlockMaskCache()
    with torch.inference_mode():
        built = cache.block_mask(masks.SlidingWindow(5), LENGTH)
    assert not any(each.is_inference() for each in lists_of(built))


def test_threads_that_build_at_once_share_one() -> None:
    cache, all_build = BlockMaskCache(), threading.Barrier(4, timeout=60)

    def build() -> BlockMask:
        all_build.wait()
        return masks.Causal().block_mask(LENGTH)

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: cache.held_or_built(lambda: "causal", build), range(4)))
    assert all(each is got[0] for each in got)
    assert counts(cache) == (1, 0, 4)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns a thousand times more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_crowd_each_other_out() -> None:
    cache = BlockMaskCache(size=2)
    wanted = {window: masks.SlidingWindow(window).block_mask(LENGTH) for window in (10, 100, 150, 200, 290)}

    def use(seed: int) -> None:
        for step in range(50):
            window = list(wanted)[(seed + step * step) % len(wanted)]
            got = cache.held_or_built(lambda: window, lambda: wanted[window])  # noqa: B023 - called at once
            assert got is wanted[window]
            assert len(cache) <= 2

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert cache.hits + cache.misses == 200
    assert cache.bytes == 2 * list_bytes(wanted[10])


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no room": (lambda: BlockMaskCache(size=0), ValueError, "BlockMaskCache: size must be >= 1, got 0"),
    "size": (lambda: BlockMaskCache(size=2.0), TypeError, "size must be an int, got 2.0"),  # type: ignore[arg-type]
    "less than nothing": (lambda: BlockMaskCache(max_bytes=-1), ValueError, "max_bytes must be >= 0, got -1"),
    "no mask": (
        lambda: BlockMaskCache().block_mask(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, 8),  # type: ignore[arg-type]
        TypeError,
        "BlockMaskCache: block_mask needs a mask",
    ),
    "no offset": (lambda: BlockMaskCache().block_mask(masks.Causal(), 3, 8), ValueError, "causal: .* needs q_offset"),
    "length": (lambda: BlockMaskCache().block_mask(masks.Causal(), 8.0), TypeError, "q_len must be an int"),  # type: ignore[arg-type]
    "batch": (lambda: BlockMaskCache().block_mask(masks.Causal(), 8, B=[2]), TypeError, "B must be an int"),  # type: ignore[arg-type]
    "offset": (lambda: BlockMaskCache().block_mask(masks.Causal(), 8, q_offset="1"), TypeError, "q_offset must be"),  # type: ignore[arg-type]
    "switch": (
        lambda: BlockMaskCache().block_mask(masks.Causal(), 8, separate_full_blocks=1),  # type: ignore[arg-type]
        TypeError,
        "separate_full_blocks must be True or False",
    ),
    "compact": (
        lambda: BlockMaskCache().block_mask(masks.Causal(), 8, compact=[]),  # type: ignore[arg-type]
        TypeError,
        "compact must be True or False",
    ),
    "device": (lambda: BlockMaskCache().block_mask(masks.Causal(), 8, device="meta"), ValueError, "device must be one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    assert_refused(*REFUSED[name])


def test_what_was_refused_is_not_held() -> None:
    cache = BlockMaskCache()
    cache.block_mask(masks.Causal(), 1)
    assert_refused(lambda: cache.block_mask(masks.Causal(), True), TypeError, "q_len must be an int")
    assert_refused(lambda: cache.block_mask(masks.Causal(), 3, 8), ValueError, "needs q_offset")
    assert len(cache) == 1


class TestInsideAUsersCompile:
    """The cache is outside of graphs, as a mask's own block_mask is."""

    @pytest.fixture(autouse=True)
    def fresh_compiler(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def test_a_graph_break(self) -> None:
        cache = BlockMaskCache()

        def layer(x: Tensor) -> Tensor:
            return x + cache.block_mask(masks.SlidingWindow(5), LENGTH).kv_num_blocks.sum()

        counters.clear()
        compiled = torch.compile(layer, backend="eager")
        x = torch.zeros(3)
        assert torch.equal(compiled(x), layer(x))
        assert torch.equal(compiled(x), layer(x))
        assert counts(cache) == (1, 3, 1)
        assert any("outside of graphs" in reason for reason in counters["graph_break"])

    def test_refused_where_the_graph_must_be_whole(self) -> None:
        cache = BlockMaskCache()
        compiled = torch.compile(lambda: cache.block_mask(masks.Causal(), LENGTH), fullgraph=True, backend="eager")
        with pytest.raises(torch._dynamo.exc.Unsupported, match="build it before the compiled function and pass it in"):
            compiled()


def test_attention_takes_one() -> None:
    cache = BlockMaskCache()
    q, k, v = torch.randn(3, 1, 2, LENGTH, 16)
    for _ in range(2):
        lists = cache.block_mask(masks.SlidingWindow(50), LENGTH)
        out = am.attention(q, k, v, masks.SlidingWindow(50), block_mask=lists)
    torch.testing.assert_close(out.double(), am.reference(q, k, v, masks.SlidingWindow(50)), atol=1e-5, rtol=1e-5)
    assert counts(cache) == (1, 1, 1)
