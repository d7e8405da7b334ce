"""attention(): bad input is refused before anything is computed, and a block_mask only where it belongs."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.overrides import TorchFunctionMode

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends.flex import FLEX
from attn_mods.dispatch import _checked
from attn_mods.mask import Mask
from attn_mods.score import Score
from attn_mods.tiles.operations import READS_A_VALUE
from tests.attention_inputs import assert_matches_reference, inputs


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend may start on bad input."""

    def started(call: object) -> None:
        raise AssertionError("a backend ran")

    for backend in am.backends.ALL:
        monkeypatch.setattr(backend, "run", started)


Q, K, V = inputs(8)

BAD_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "q_len != kv_len": (
        (Q[:, :, :3], K, V, masks.Causal()),
        {},
        ValueError,
        r"causal: q_len != kv_len needs q_offset.*got q_len=3, kv_len=8; pass q_offset=5",
    ),
    "heads": ((Q[:, :3], K, V), {}, ValueError, r"full: .*query heads must be a multiple.*q \(2, 3, 8, 16\)"),
    "three dimensions": ((Q[0], K[0], V[0]), {}, ValueError, r"must have 4 dimensions"),
    "batch": ((Q[:1], K, V), {}, ValueError, r"same batch size"),
    "integer q": (
        (Q.int(), K.int(), V.int()),
        {},
        TypeError,
        r"q must be float16, bfloat16, float32 or float64, got torch.int32",
    ),
    "mixed dtypes": ((Q, K.bfloat16(), V), {}, TypeError, r"one dtype.*autocast"),
    "devices": (
        (Q, K.to("meta"), V),
        {},
        ValueError,
        r"k must be a dense tensor that holds values, got one on the meta device",
    ),
    "no keys": ((Q, K[:, :, :0], V[:, :, :0]), {}, ValueError, r"at least one query and one key"),
    "tensor": ((Q, K, V, torch.ones(8, 8)), {}, TypeError, r"got a tensor of shape \(8, 8\).*Mask\.from_mask_mod"),
    "function": ((Q, K, V, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx), {}, TypeError, r"Mask\.from_mask_mod"),
    "block mask as recipe": (
        (Q, K, V, masks.Causal().block_mask(8)),
        {},
        TypeError,
        r"got a BlockMask; pass it as block_mask=",
    ),
    "batch of parameters": (
        (Q, K, V, masks.KeyPadding(torch.tensor([3, 4, 5]))),
        {},
        ValueError,
        r"key_padding: its parameters must have B = 2 as q has, or 1, got 3",
    ),
    "heads of parameters": (
        (Q, K, V, Recipe(sink=torch.zeros(3))),
        {},
        ValueError,
        r"full and sink: its sink must have Hq = 4 as q has, or 1, got 3; give it 4",
    ),
    "device of parameters": (
        (Q, K, V, scores.HeadBias(torch.zeros(4, device="meta"))),
        {},
        ValueError,
        r"head_bias: its tensors must be on cpu as q is, got meta; .*\.to\(\"cpu\"\)",
    ),
    "documents end elsewhere": (
        (Q, K, V, masks.Document.from_lengths([3, 4])),
        {},
        ValueError,
        r"document: cu_seqlens must end at the number of keys, 8, got 7",
    ),
    "backend": ((Q, K, V), {"backend": "sdpa_flsh"}, ValueError, r"got 'sdpa_flsh'; did you mean sdpa_flash"),
    "backend out of nowhere": ((Q, K, V), {"backend": "zzz"}, ValueError, r"got 'zzz'; use auto, flex"),
    "block mask of torch's matrix": ((Q, K, V, masks.Causal()), {"block_mask": Q}, TypeError, r"must be a BlockMask"),
    "offset": (
        (Q, K, V, masks.Causal()),
        {"q_offset": 1.5},
        TypeError,
        r"causal: q_offset must be an integer, got 1.5",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
@pytest.mark.parametrize("function", [am.attention, am.explain], ids=["attention", "explain"])
@pytest.mark.usefixtures("nothing_runs")
def test_bad_input_is_one_clear_error(name: str, function: Any) -> None:
    arguments, keywords, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        function(*arguments, **keywords)


def test_the_error_holds_every_backends_reason() -> None:
    q, k, v = inputs(8)
    recipe = Recipe(masks.Causal(), sink=torch.zeros(4))
    with pytest.raises(ValueError, match="causal and sink: a backend must compute exactly this") as caught:
        am.attention(q.requires_grad_(), k, v, recipe, kernel_options={"BLOCK_M": 32})
    for backend in am.backends.ALL:
        assert f"{backend.name}: " in str(caught.value)


@pytest.mark.parametrize("backend", ["auto", "flex", "eager", "sdpa_flash"])
def test_c44_one_query_of_a_cache(backend: str) -> None:
    q, k, v = inputs(100)
    with torch.no_grad():
        full = am.attention(q, k, v, masks.Causal(), backend=backend)
        last = am.attention(q[:, :, 99:], k, v, masks.Causal(), q_offset=99, backend=backend)
    torch.testing.assert_close(last, full[:, :, 99:])


@pytest.mark.parametrize(
    ("offset", "backend"),
    [(5, "eager"), (torch.tensor(5), "eager"), (torch.tensor([5]), "eager"), (torch.tensor([5]), "flex")],
    ids=["int", "0-d", "one element", "one element, compiled"],
)
def test_c48_forms_of_the_offset(offset: int | Tensor, backend: str) -> None:
    q, k, v = inputs(3, 8)
    recipe = Recipe(masks.SlidingWindow(4), scores.Alibi(num_heads=4))
    with torch.no_grad():
        out = am.attention(q, k, v, recipe, q_offset=offset, backend=backend)
        expected = am.reference(q, k, v, recipe, q_offset=5)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


class TestBlockMask:
    """Cases in which a kernel given the wrong lists is wrong and silent."""

    @staticmethod
    def padding(lengths: list[int]) -> Mask:
        n = torch.tensor(lengths)
        return Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < n[b], B=len(lengths), frame="keys", name="short")

    def test_c1_lists_of_one_sample_for_a_rule_per_sample(self) -> None:
        mask = self.padding([3, 200])
        lists = create_block_mask(mask.mask_mod(), None, None, 256, 256, device="cpu", BLOCK_SIZE=64)
        with pytest.raises(ValueError, match=r"short: block_mask must have B = 2, the rule depends on it, got 1"):
            am.attention(*inputs(256), mask, block_mask=lists)

    def test_c2_lists_of_two_samples_for_four(self) -> None:
        mask = self.padding([3, 200, 77, 256])
        lists = create_block_mask(mask.mask_mod(), 2, None, 256, 256, device="cpu", BLOCK_SIZE=64)
        with pytest.raises(ValueError, match=r"short: block_mask must have B = 4 as q has, or 1, got 2"):
            am.attention(*inputs(256, batch=4), mask, block_mask=lists)

    def test_c3_lists_of_one_head_for_a_rule_per_head(self) -> None:
        mask = masks.SlidingWindow(torch.tensor([4, 300]))
        lists = create_block_mask(mask.mask_mod(), None, None, 384, 384, device="cpu")
        tensors = inputs(384, heads=2)
        with pytest.raises(ValueError, match=r"sliding_window: block_mask must have Hq = 2, the rule depends on it"):
            am.attention(*tensors, mask, block_mask=lists)
        assert_matches_reference(tensors, mask, "flex")

    @pytest.mark.parametrize("backend", ["flex", "eager", "sdpa_math"])
    def test_c5_lists_without_a_rule_are_the_mask(self, backend: str) -> None:
        indices = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32).reshape(1, 1, 2, 2)
        one = torch.ones(1, 1, 2, dtype=torch.int32)
        lists = BlockMask.from_kv_blocks(torch.zeros_like(one), indices.clone(), one, indices)
        tensors = inputs(256)
        with torch.no_grad():
            out = am.attention(*tensors, block_mask=lists, backend=backend)
            expected = am.reference(*tensors, masks.Document.from_lengths([128, 128]))
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)

    def test_lists_with_a_rule_are_the_mask(self) -> None:
        lists = am.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx - kv_idx >= 3 * b, 2, None, 40, 40, device="cpu")
        tensors = inputs(40)
        rule = Mask.from_mask_mod(lists.mask_mod, B=2)
        with torch.no_grad():
            for recipe in (None, scores.Softcap(2.0)):
                out = am.attention(*tensors, recipe, block_mask=lists, backend="eager")
                expected = am.reference(*tensors, Recipe(rule, recipe))
                torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)

    def test_c6_stale_lists(self) -> None:
        window = torch.tensor(2)
        mask = masks.SlidingWindow(window)
        lists = mask.block_mask(384)
        tensors = inputs(384)
        with torch.no_grad():
            before = am.attention(*tensors, mask, block_mask=lists, backend="flex")
        torch.testing.assert_close(before.double(), am.reference(*tensors, mask), atol=1e-5, rtol=1e-5)
        window.fill_(384)
        with pytest.raises(
            ValueError, match=r"sliding_window: block_mask must be built for this mask as it is now, got other"
        ):
            am.attention(*tensors, mask, block_mask=lists)

    def test_c6_stale_lists_of_a_users_rule(self) -> None:
        window = torch.tensor(2)

        def near(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return q_idx - kv_idx < window

        lists = am.create_block_mask(near, None, None, 384, 384, device="cpu")
        am.explain(*inputs(384), Mask.from_mask_mod(near), block_mask=lists)
        window.fill_(384)
        with pytest.raises(
            ValueError, match="near: block_mask must be built for this mask as it is now, got other blocks"
        ):
            am.attention(*inputs(384), Mask.from_mask_mod(near), block_mask=lists)

    @pytest.mark.parametrize("other", [masks.Full(), masks.SlidingWindow(4), masks.Causal().shift(q=1)], ids=repr)
    def test_lists_of_another_mask(self, other: Mask) -> None:
        lists = other.block_mask(8)
        with pytest.raises(ValueError, match="causal: block_mask must be built for this mask"):
            am.attention(*inputs(8), masks.Causal(), block_mask=lists)
        foreign = create_block_mask(other.mask_mod(), None, None, 8, 8, device="cpu")
        with pytest.raises(
            ValueError, match="causal: block_mask must be built for this mask as it is now, got the rule"
        ):
            am.attention(*inputs(8), masks.Causal(), block_mask=foreign)

    def test_torchs_lists_of_the_same_rule_are_taken(self) -> None:
        mask = masks.Document.from_lengths([3, 5]) & masks.SlidingWindow(2)
        lists = create_block_mask(mask.mask_mod(), None, None, 8, 8, device="cpu")
        am.explain(*inputs(8), mask, block_mask=lists)
        other = masks.Document.from_lengths([4, 4]) & masks.SlidingWindow(2)
        with pytest.raises(ValueError, match="block_mask must be built for this mask"):
            am.explain(*inputs(8), other, block_mask=lists)

    def test_a5_lists_for_other_lengths(self) -> None:
        message = r"causal: block_mask must be for \(q_len, kv_len\) = \(8, 8\), got \(9, 9\)"
        with pytest.raises(ValueError, match=message):
            am.attention(*inputs(8), masks.Causal(), block_mask=masks.Causal().block_mask(9))

    def test_offset_belongs_to_the_mask(self) -> None:
        q, k, v = inputs(3, 8)
        lists = masks.Causal().block_mask(3, 8, q_offset=5)
        am.explain(q, k, v, masks.Causal(), q_offset=5, block_mask=lists)
        with pytest.raises(ValueError, match="block_mask must be built for this mask"):
            am.explain(q, k, v, masks.Causal(), q_offset=4, block_mask=lists)


@pytest.mark.parametrize("options", [{"BACKEND": "TRITON"}, {"bwd_BLOCK_M1": 32, "num_warps": 4}], ids=str)
def test_documented_kernel_options_reach_the_kernel(options: Any) -> None:
    call = _checked(*inputs(40), masks.Causal(), kernel_options=options)
    assert FLEX.supports(call.recipe, call.shapes, call.q.dtype, call.q.device, call.needs) is None
    assert FLEX.kernel_options(call, None) == options


class TestAutocast:
    @pytest.mark.parametrize("backend", ["flex", "eager", "sdpa_flash"])
    def test_mixed_dtypes_are_cast_as_sdpa_casts_them(self, backend: str) -> None:
        q, k, v = inputs(40, key_heads=4)
        v = v.bfloat16()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            out = am.attention(q, k, v, masks.Causal(), backend=backend)
            theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert out.dtype == theirs.dtype == torch.bfloat16
        expected = am.reference(q.bfloat16(), k.bfloat16(), v, masks.Causal())
        assert float((out.double() - expected).abs().max()) <= 2 * float((theirs.double() - expected).abs().max())

    def test_eager_keeps_its_float32_sums(self) -> None:
        q, k, v = inputs(40)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, lse = am.attention(q, k, v, masks.Causal(), backend="eager", return_lse=True)
        _, expected = am.reference(q.bfloat16(), k.bfloat16(), v.bfloat16(), masks.Causal(), return_lse=True)
        assert lse.dtype == torch.float32
        torch.testing.assert_close(lse.double(), expected, atol=1e-5, rtol=1e-5)

    def test_float64_is_left_alone(self) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert am.attention(*inputs(8, dtype=torch.float64)).dtype == torch.float64


class TestUserRules:
    """C54: what a rule may not do is said in plain words, whichever backend would run it."""

    RULES: ClassVar[dict[str, Any]] = {
        "if": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx if q_idx > 3 else q_idx < kv_idx,
        "and": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx and kv_idx > 2,
        "chained": lambda b, h, q_idx, kv_idx: 2 < kv_idx < q_idx,
        "integer": lambda b, h, q_idx, kv_idx: q_idx - kv_idx,
        "python bool": lambda b, h, q_idx, kv_idx: True,
    }

    @pytest.mark.parametrize("backend", ["flex", "eager"])
    @pytest.mark.parametrize("name", RULES)
    def test_c54_mask(self, name: str, backend: str) -> None:
        mask = Mask.from_mask_mod(self.RULES[name], name=name)
        words = {"integer": "must return a boolean tensor", "python bool": "must return a boolean tensor"}
        with pytest.raises(TypeError, match=words.get(name, "Write `&` for `and`")):
            am.attention(*inputs(8), mask, backend=backend)

    @pytest.mark.parametrize("backend", ["flex", "eager"])
    def test_c54_bound_method(self, backend: str) -> None:
        class Holder:
            def rule(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                return q_idx >= kv_idx

        with pytest.raises(TypeError, match="a bound method is no mask_mod"):
            am.attention(*inputs(8), Mask.from_mask_mod(Holder().rule), backend=backend)

    @pytest.mark.parametrize("backend", ["flex", "eager"])
    def test_c54_score(self, backend: str) -> None:
        def branches(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score if q_idx > kv_idx else -score

        with pytest.raises(TypeError, match=r"branches: .*torch\.where\(condition, x, y\) for `if`"):
            am.attention(*inputs(8), Score.from_score_mod(branches), backend=backend)


class Reads(TorchFunctionMode):
    """Counts the values that are handed to Python: on a card each is a synchronisation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.count += getattr(function, "__name__", "") in READS_A_VALUE
        return function(*arguments, **(keywords or {}))


def test_a_call_reads_no_values_to_check_them() -> None:
    table = torch.ones(8, dtype=torch.bool)
    mask = masks.Document.from_lengths([3, 5]) & masks.SlidingWindow(torch.tensor([1, 2, 3, 4]))
    users = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: table[kv_idx], name="users")
    recipe = Recipe(mask & users, scores.HeadBias(torch.zeros(4)), sink=torch.zeros(4))
    tensors = inputs(8)
    am.explain(*tensors, recipe)
    with Reads() as reads:
        am.explain(*tensors, recipe)
    assert reads.count == 0
    with Reads() as reads:
        masks.SlidingWindow(torch.tensor([1, 2, 3, 4]))
    assert reads.count == 1


class TestInsideAUsersCompile:
    """torch reports an error of a traced call as its own "Observed exception"; what went wrong must be found in it."""

    CALLS: ClassVar[dict[str, tuple[Any, type[Exception]]]] = {
        "window": (lambda q, k, v: am.attention(q, k, v, masks.SlidingWindow(0)), ValueError),
        "window of a text": (lambda q, k, v: am.attention(q, k, v, masks.SlidingWindow("3")), TypeError),
        "cap": (lambda q, k, v: am.attention(q, k, v, scores.Softcap(-1.0)), ValueError),
        "slopes": (lambda q, k, v: am.attention(q, k, v, scores.Alibi(0)), ValueError),
        "lengths": (lambda q, k, v: am.attention(q[:, :, :3], k, v, masks.Causal()), ValueError),
        "heads": (lambda q, k, v: am.attention(q[:, :3], k, v), ValueError),
        "dtypes": (lambda q, k, v: am.attention(q.double(), k, v), TypeError),
        "no tensor": (lambda q, k, v: am.attention(q, k, None), TypeError),
        "recipe": (lambda q, k, v: am.attention(q, k, v, "causal"), TypeError),
        "offset": (lambda q, k, v: am.attention(q, k, v, masks.Causal(), q_offset=1.5), TypeError),
        "offset too large": (lambda q, k, v: am.attention(q, k, v, masks.Causal(), q_offset=2**40), ValueError),
        "switch": (lambda q, k, v: am.attention(q, k, v, return_lse=1), TypeError),
        "backend": (lambda q, k, v: am.attention(q, k, v, backend="flx"), ValueError),
        "condition": (lambda q, k, v: am.attention(q, k, v, masks.Causal() and masks.Full()), TypeError),
        "sink": (lambda q, k, v: am.attention(q, k, v, Recipe(sink=torch.zeros(3))), ValueError),
        "options": (lambda q, k, v: am.attention(q, k, v, kernel_options=[1]), TypeError),
        "reference": (lambda q, k, v: am.reference(q, k, v, masks.SlidingWindow(-1)), ValueError),
    }

    CONVERTED = ("window of a text", "offset")

    @pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
    @pytest.mark.parametrize("name", CALLS)
    def test_the_text_arrives(self, name: str, fullgraph: bool) -> None:
        function, error = self.CALLS[name]
        if name in self.CONVERTED and torch.__version__ < "2.12":
            pytest.skip("torch 2.11's compiler has an error of its own where something is no int")
        with pytest.raises(error) as plain:
            function(*inputs(8))
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r".") as compiled:
            torch.compile(function, fullgraph=fullgraph, backend="eager")(*inputs(8))
        torch._dynamo.reset()
        if fullgraph:
            assert str(plain.value) in str(compiled.value).replace("\\'", "'")
        else:
            assert type(compiled.value) is error
            assert str(compiled.value) == str(plain.value)


def test_c65_learnable_scores_train_on_a_cpu() -> None:
    tensors = inputs(12)
    for make, start in (
        (scores.HeadBias, torch.linspace(-1, 1, 4)),
        (scores.HeadBias, torch.tensor(0.3)),
        (scores.RelativeBiasTable, torch.randn(4, 23)),
    ):
        ours, truth = start.clone().requires_grad_(), start.clone().requires_grad_()
        am.attention(*tensors, Recipe(masks.Causal(), make(ours))).square().sum().backward()
        am.reference(*tensors, Recipe(masks.Causal(), make(truth))).square().sum().backward()
        torch.testing.assert_close(ours.grad, truth.grad, atol=1e-4, rtol=1e-4)


def test_a6_one_empty_row_leaves_the_other_gradients_alone() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(12))
    lengths = torch.tensor([0, 7])
    am.attention(q, k, v, masks.KeyPadding(lengths)).square().sum().backward()
    assert q.grad is not None
    assert not q.grad[0].any()
    assert bool(q.grad.isfinite().all())
    assert bool(q.grad[1].any())


def test_a7_offset_at_the_end_and_at_the_start_differ() -> None:
    q, k, v = inputs(3, 8)
    outs = [am.attention(q, k, v, masks.Causal(), q_offset=offset, backend="eager") for offset in (0, 5)]
    assert not torch.allclose(outs[0], outs[1])
    torch.testing.assert_close(outs[0][:, :, 0], v[:, :, 0].repeat_interleave(2, 1))


def test_lse_of_empty_rows_is_minus_infinity() -> None:
    _, lse = am.attention(*inputs(8), masks.Causal().shift(q=-2), return_lse=True)
    assert lse.dtype == torch.float32
    assert bool((lse[..., :2] == -math.inf).all())
    assert bool(lse[..., 2:].isfinite().all())
