"""Known ways in which attention masks went wrong elsewhere, under their numbers, with the right value.

Cases that belong to one module or one entry are tested beside it; the last test here holds the numbers together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import attn_mods as am
from attn_mods import Mask, Recipe, Score, masks, scores
from attn_mods.documents import document_of
from attn_mods.entry import Entry
from attn_mods.entry_checks import expand, rule_matrix
from attn_mods.mask import MaskMod
from benchmarks.clock import CLEAR_REFS, peak_memory
from tests.block_mask_equality import assert_same_block_mask

# C9 is about torch's own cropper, C33, C35, C38, C42, C51, C59, C60 and C66-C69 need a GPU
CPU_CASES = {
    *(1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 26, 27, 28, 29, 30, 32, 34, 36),
    *(37, 39, 41, 44, 46, 48, 49, 50, 53, 54, 55, 56, 57, 61, 62, 64, 65, 71),
}

BACKENDS = ("eager", "flex")


def inputs(length: int, heads: int = 2, batch: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, batch, heads, length, 32, generator=generator).to(dtype))


def run(tensors: tuple[Tensor, ...], recipe: Recipe | Mask, backend: str) -> Tensor:
    with torch.no_grad():
        out = am.attention(*tensors, recipe, backend=backend)
    assert isinstance(out, Tensor)
    return out


def counts(mask: Mask, length: int) -> list[int]:
    """How many keys each query sees."""
    return rule_matrix(mask, length, length, torch.device("cpu"))[0, 0].sum(-1).tolist()


def test_c7_a_mask_for_other_lengths_is_rebuilt_not_cropped() -> None:
    late_keys = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx >= 256) & (kv_idx < 384), frame="keys")
    block_mask = late_keys.block_mask(512, 256)
    assert int(block_mask.kv_num_blocks.sum()) == int(block_mask.full_kv_num_blocks.sum()) == 0
    q, _, _ = inputs(512)
    _, k, v = inputs(256)
    for backend in BACKENDS:
        assert not run((q, k, v), late_keys, backend).any()


def test_c8_a_shorter_mask_lists_only_its_own_blocks() -> None:
    first_and_last = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (kv_idx < 128) | (kv_idx >= 896), frame="keys")
    block_mask = first_and_last.block_mask(512, 512)
    assert block_mask.full_kv_num_blocks.flatten().tolist() == [1, 1, 1, 1]
    assert block_mask.full_kv_indices[0, 0, :, 0].tolist() == [0, 0, 0, 0]
    assert int(block_mask.kv_num_blocks.sum()) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_c10_lists_made_by_hand_are_taken_as_they_are(backend: str) -> None:
    counts, indices = torch.ones(1, 1, 3, dtype=torch.int32), torch.tensor([[[[0, 0, 0], [1, 0, 0], [2, 0, 0]]]])
    made = BlockMask.from_kv_blocks(counts, indices.int(), BLOCK_SIZE=32)
    assert made.shape == (1, 1, 96, 96)
    tensors = inputs(96)
    with torch.no_grad():
        out = am.attention(*tensors, block_mask=made, backend=backend)
    expected = am.reference(*tensors, masks.BlockDiagonal(32))
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)


ANY_LENGTH = [
    (entry, name)
    for entry in (item if isinstance(item, Entry) else item.entry for item in masks.ALL)
    for name, case in entry.cases.items()
    if case.lengths is None and name in ("tiny", "bench")
]


@pytest.mark.parametrize(("entry", "name"), ANY_LENGTH, ids=lambda value: getattr(value, "name", value))
def test_c11_expanded_blocks_are_the_dense_mask(entry: Entry, name: str) -> None:
    for kv_len in (1, 5, 127, 128, 129, 200, 384):
        mask = entry.cases[name].make(kv_len, kv_len, "cpu")
        for q_len in (length for length in (1, 5, 127, 128, 129, 200, 384) if length <= kv_len):
            placed = mask.place(q_len, kv_len, kv_len - q_len if mask.frame == "self" else None)
            ruled = rule_matrix(placed, q_len, kv_len, torch.device("cpu"))
            dense = placed.dense(q_len, kv_len).expand_as(ruled)
            for block_size in (16, 64, 128, (64, 128)):
                block_mask = placed.placed_block_mask(q_len, kv_len, block_size=block_size)
                where = f"{q_len}x{kv_len}, blocks {block_size}"
                assert torch.equal(expand(block_mask, ruled), dense), where
                if kv_len % block_mask.BLOCK_SIZE[1]:
                    assert not block_mask.full_q_num_blocks[..., -1].any(), f"{where}: the ragged last block is full"
                if q_len % block_mask.BLOCK_SIZE[0]:
                    assert not block_mask.full_kv_num_blocks[..., -1].any(), f"{where}: the ragged last block is full"


def test_c12_padding_does_not_see_padding() -> None:
    ids = torch.tensor([0, 0, 1, 1, -1, -1])
    assert counts(masks.Document.from_ids(ids) & masks.Causal(), 6) == [1, 2, 1, 2, 0, 0]


def test_c14_empty_documents_own_no_token() -> None:
    documents = masks.Document.from_lengths([3, 0, 0, 5])
    assert documents.cu_seqlens is not None
    assert document_of(documents.cu_seqlens, 8).tolist() == [0, 0, 0, 3, 3, 3, 3, 3]
    assert counts(documents, 8) == [3] * 3 + [5] * 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_c15_ids_exactly_as_long_as_the_sequence(backend: str) -> None:
    tensors = inputs(100)
    mask = masks.Document.from_ids(torch.arange(100) // 33) & masks.Causal()
    torch.testing.assert_close(run(tensors, mask, backend).double(), am.reference(*tensors, mask), atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("lengths", "changed"),
    [
        ([1, 127, 128, 44], 2),
        ([1, 1, 1, 125, 128, 1, 1, 42], 4),
        ([127, 1, 1, 127, 1, 40, 1, 1, 1], 3),
        ([127, 1, 1, 127, 1, 40, 1, 1, 1], 2),
        ([1, 299], 0),
        ([299, 1], 1),
        ([1] * 300, 128),
    ],
    ids=["one_at_start", "runs_of_one", "ones_at_block_edges", "one_in_a_run", "first_token", "last_token", "all_ones"],
)
def test_c16_documents_are_isolated_to_the_bit(lengths: list[int], changed: int, backend: str) -> None:
    mask = masks.Document.from_lengths(lengths) & masks.Causal()
    start = sum(lengths[:changed])
    inside = torch.zeros(300, dtype=torch.bool)
    inside[start : start + lengths[changed]] = True
    q, k, v = inputs(300)
    before = run((q, k, v), mask, backend)
    noise = 1e4 * torch.randn(2, *k.shape)
    k, v = (torch.where(inside[:, None], loud, tensor) for loud, tensor in zip(noise, (k, v), strict=True))
    after = run((q, k, v), mask, backend)
    assert torch.equal(before[:, :, ~inside], after[:, :, ~inside])
    assert not torch.equal(before[:, :, inside], after[:, :, inside])
    alone = torch.tensor([length == 1 for length in lengths for _ in range(length)])
    torch.testing.assert_close(after[:, :, alone], v[:, :, alone], atol=0, rtol=1e-6, msg="a token alone is its value")


def test_c17_padding_of_ones_changes_nothing() -> None:
    packed = masks.Document.from_lengths([3, 4, 5]) & masks.Causal()
    padded = packed & masks.KeyPadding(torch.tensor([12]))
    assert torch.equal(padded.dense(12, 12).reshape(12, 12), packed.dense(12, 12))


def test_c20_window_counts_include_self() -> None:
    assert counts(masks.SlidingWindow(4), 10) == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert counts(masks.SlidingWindow(1), 10) == [1] * 10
    band = masks.SlidingWindow(4).band()
    assert band is not None
    assert (band.left, band.right) == (3, 0)
    for window in (0, -1):
        with pytest.raises(ValueError, match="sliding_window: window must be >= 1"):
            masks.SlidingWindow(window)


def test_c22_window_at_the_end_of_a_cache() -> None:
    ruled = rule_matrix(masks.SlidingWindow(4).shift(q=8), 2, 10, torch.device("cpu"))[0, 0]
    assert [row.nonzero().flatten().tolist() for row in ruled] == [[5, 6, 7, 8], [6, 7, 8, 9]]


def test_c26_precedence_is_pointed_out() -> None:
    def without_parentheses(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & b % 2 == 0

    def with_parentheses(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (b % 2 == 0)

    with pytest.warns(UserWarning, match="without_parentheses.*parentheses"):
        got = am.create_block_mask(without_parentheses, 1, 1, 4, 4, "cpu", BLOCK_SIZE=16)
    assert_same_block_mask(got, create_block_mask(without_parentheses, 1, 1, 4, 4, "cpu", BLOCK_SIZE=16))
    am.create_block_mask(with_parentheses, 1, 1, 4, 4, "cpu", BLOCK_SIZE=16)
    ruled = [
        rule_matrix(Mask.from_mask_mod(rule, B=1), 4, 4, torch.device("cpu"))
        for rule in (without_parentheses, with_parentheses)
    ]
    assert [int(matrix.sum()) for matrix in ruled] == [16, 10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_c27_eager_scores_of_bfloat16_inputs_are_not_rounded(dtype: torch.dtype) -> None:
    """The compiled half is beside the entry."""
    length = 2048
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 64, generator=generator).bfloat16() for _ in range(3))
    score = scores.Alibi(slopes=torch.tensor([0.5], dtype=dtype), form="key_only")
    expected = am.reference(q, k, v, Recipe(masks.Causal(), score))
    assert not isinstance(expected, tuple)

    def error(score: Score) -> float:
        return float((run((q, k, v), Recipe(masks.Causal(), score), "eager").double() - expected).abs().max())

    def cast_to_scores(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (score + 0.5 * kv_idx).to(score.dtype)

    def cast_to_inputs(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (score + 0.5 * kv_idx).to(torch.bfloat16).float()

    assert error(score) <= 0.02
    assert error(Score.from_score_mod(cast_to_scores)) <= 0.02
    assert error(Score.from_score_mod(cast_to_inputs)) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_c29_softcap_comes_before_the_mask(backend: str) -> None:
    q, k, v = inputs(8)
    recipe = Recipe(masks.Causal(), scores.Softcap(cap=1.0))
    out = run((q, k, v), recipe, backend)
    capped = torch.tanh(q.double() @ k.double().mT / 32**0.5)
    hidden = ~torch.ones(8, 8, dtype=torch.bool).tril()
    torch.testing.assert_close(out.double(), capped.masked_fill(hidden, -torch.inf).softmax(-1) @ v.double())
    k, v = k.clone(), v.clone()
    k[:, :, 1:], v[:, :, 1:] = 100.0, 100.0
    assert torch.equal(run((q, k, v), recipe, backend)[:, :, 0], out[:, :, 0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("score", [None, scores.Softcap(cap=30.0)], ids=["plain", "softcap"])
def test_c32_large_logits_in_float16_stay_finite(score: Score | None, backend: str) -> None:
    q = torch.full((1, 1, 64, 64), 60.0, dtype=torch.float16)
    v = torch.randn(1, 1, 64, 64).half()
    out = run((q, q, v), Recipe(masks.Causal(), score), backend)
    expected = am.reference(q, q, v, Recipe(masks.Causal(), score))
    torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=0)


def test_c34_two_errors_rule_in_bfloat16() -> None:
    tensors = inputs(512, heads=4, dtype=torch.bfloat16)
    expected = am.reference(*tensors, masks.Causal())
    sdpa = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    error = float((run(tensors, masks.Causal(), "flex").double() - expected).abs().max())
    assert error <= 2 * float((sdpa.double() - expected).abs().max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("number", "length", "empty"), [(36, 130, (5, 129)), (37, 256, tuple(range(128)))], ids=["c36", "c37"]
)
def test_c36_c37_empty_rows_are_zero(backend: str, number: int, length: int, empty: tuple[int, ...]) -> None:
    is_empty = torch.zeros(length, dtype=torch.bool)
    is_empty[list(empty)] = True
    mask = masks.Causal() & Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: ~is_empty[q_idx], name="not_empty")
    tensors = inputs(length)
    out = run(tensors, mask, backend)
    if number == 37:
        block_mask = mask.block_mask(length)
        listed = block_mask.kv_num_blocks + block_mask.full_kv_num_blocks
        assert (listed[0, 0] > 0).tolist() == [False, True]
    else:
        _, lse = am.attention(*tensors, mask, backend="eager", return_lse=True)
        assert (lse == -torch.inf)[0, 0].nonzero().flatten().tolist() == list(empty)
    assert not out[:, :, list(empty)].any()
    torch.testing.assert_close(out.double(), am.reference(*tensors, mask), atol=1e-5, rtol=0)


def windowed(window: int | Tensor) -> MaskMod:
    """A new closure over a number."""

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    return rule


def packed(length: int) -> MaskMod:
    """A new closure over a table."""
    ids = torch.arange(300) // length

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])

    return rule


@pytest.mark.parametrize(
    "make",
    [windowed, lambda number: windowed(torch.tensor(number)), packed],
    ids=["an int", "a 0-d tensor", "document ids"],
)
def test_c53_new_closures_every_step_give_torchs_lists(make: Callable[[int], MaskMod]) -> None:
    """Compiled, it decides by values in Python as ever: it is called as it is, no graph is made, nothing made anew."""
    torch._dynamo.reset()
    graphs = CompileCounter()
    compiled = torch.compile(am.create_block_mask, backend=graphs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in (10, 40, 70, 100, 130):
            rule = make(number)
            got = compiled(rule, None, None, 300, 300, "cpu", BLOCK_SIZE=32)
            assert_same_block_mask(got, create_block_mask(rule, None, None, 300, 300, "cpu", BLOCK_SIZE=32))
    assert graphs.frame_count == 0


def test_c53_new_closures_in_a_compiled_step() -> None:
    def step(x: Tensor, window: Tensor) -> Tensor:
        lists = am.create_block_mask(windowed(window), None, None, 300, 300, "cpu", BLOCK_SIZE=32)
        return x * 2 + lists.kv_num_blocks

    torch._dynamo.reset()
    graphs = CompileCounter()
    compiled = torch.compile(step, backend=graphs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for number in (10, 40, 70, 100, 130):
            x, window = torch.randn(10), torch.tensor(number)
            lists = create_block_mask(windowed(window), None, None, 300, 300, "cpu", BLOCK_SIZE=32)
            torch.testing.assert_close(compiled(x, window), x * 2 + lists.kv_num_blocks)
    assert graphs.frame_count == 1


@pytest.mark.parametrize(
    "build",
    [lambda: am.create_block_mask(windowed(5), None, None, 300, 300, "cpu"), lambda: masks.Causal().block_mask(300)],
    ids=["create_block_mask", "Mask.block_mask"],
)
def test_c53_lists_inside_one_graph_are_refused(build: Callable[[], BlockMask]) -> None:
    compiled = torch.compile(lambda: build().kv_num_blocks + 1, fullgraph=True, backend="eager")
    with pytest.raises(Unsupported, match="build it before the compiled function and pass it in"):
        compiled()


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="the peak memory of a process is read from Linux's /proc")
@pytest.mark.parametrize(
    "mask",
    [masks.Causal(), masks.SlidingWindow(1024), masks.Document.from_lengths([2048] * 64) & masks.Causal()],
    ids=lambda mask: mask.name,
)
def test_c61_memory_of_a_long_mask(mask: Mask) -> None:
    mask.block_mask(4096 if mask.device is None else 131072)
    assert peak_memory(lambda: mask.block_mask(131072)) < 200 << 20


def test_c64_masks_are_made_where_their_tensors_are() -> None:
    assert masks.SlidingWindow(torch.tensor(4)).block_mask(40).kv_indices.device.type == "cpu"
    elsewhere = torch.ones(40, dtype=torch.bool, device="meta")
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: elsewhere[kv_idx], name="users")
    with pytest.raises(ValueError, match=r'users: its tensors must be on cpu, got meta; .*\.to\("cpu"\)'):
        mask.block_mask(40, device="cpu")


def test_every_cpu_case_has_a_test() -> None:
    tests = Path(__file__).parent
    found = {
        int(number)
        for path in tests.rglob("test_*.py")
        for name in re.findall(r"def (test_\w*)\(", path.read_text())
        for number in re.findall(r"_c(\d+)(?=_)", name)
    }
    assert found >= CPU_CASES, f"no test for {sorted(CPU_CASES - found)}"
