"""sdpa_*: exact where they run, and they say why where they do not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import Needs, Shapes, get
from attn_mods.backends.sdpa import mask_form
from attn_mods.mask import Mask
from attn_mods.score import Score
from tests.attention_inputs import assert_matches_reference, inputs

ON_CPU = ("sdpa_flash", "sdpa_math")
NOT_ON_CPU = ("sdpa_cudnn", "sdpa_efficient")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(masks.Causal()),
        Recipe(masks.SlidingWindow(7), scale=0.3),
        Recipe(masks.SlidingWindow(torch.tensor([1, 2, 5, 30]))),
        Recipe(masks.Document.from_lengths([13, 0, 27])),
        Recipe(masks.Causal(), scores.Alibi(num_heads=4)),
        Recipe(masks.Causal().shift(q=-9)),
        Recipe(masks.Causal().shift(q=-9), scores.HeadBias(torch.tensor([1.0, 2.0, 3.0, 4.0]))),
    ],
    ids=lambda recipe: recipe.name,
)
def test_equals_reference(backend: str, recipe: Recipe) -> None:
    assert_matches_reference(inputs(40), recipe, backend)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(("q_len", "kv_len", "offset"), [(1, 100, 99), (5, 37, 32), (5, 37, 0), (37, 5, 0)])
def test_c44_is_causal_only_where_it_means_the_same(backend: str, q_len: int, kv_len: int, offset: int) -> None:
    assert_matches_reference(inputs(q_len, kv_len), masks.Causal(), backend, q_offset=offset)


@pytest.mark.parametrize(
    ("backend", "device", "key_heads", "grouped"),
    [
        ("sdpa_cudnn", "cuda", 2, True),
        ("sdpa_flash", "cuda", 2, True),
        ("sdpa_cudnn", "cuda", 8, False),
        ("sdpa_efficient", "cuda", 2, False),
        ("sdpa_math", "cuda", 2, False),
        ("sdpa_flash", "cpu", 2, False),
    ],
)
def test_which_kernels_read_grouped_heads(backend: str, device: str, key_heads: int, grouped: bool) -> None:
    q, k = (
        SimpleNamespace(shape=torch.Size([1, heads, 40, 64]), device=torch.device(device)) for heads in (8, key_heads)
    )
    sdpa: Any = get(backend)
    assert sdpa.reads_grouped_heads(q, k) is grouped


@pytest.mark.parametrize(
    ("mask", "q_len", "kv_len", "form"),
    [
        (None, 8, 8, "none"),
        (masks.Full(), 8, 9, "none"),
        (masks.Causal(), 8, 8, "causal"),
        (masks.Causal(), 8, 9, "dense"),
        (masks.Causal().shift(q=7), 1, 8, "none"),
        (masks.Causal().shift(q=6), 1, 8, "dense"),
        (masks.SlidingWindow(8), 8, 8, "causal"),
        (masks.SlidingWindow(7), 8, 8, "dense"),
        (masks.Document.from_lengths([8]), 8, 8, "dense"),
        (~masks.Causal(), 8, 8, "dense"),
    ],
    ids=str,
)
def test_form_of_the_mask(mask: Mask | None, q_len: int, kv_len: int, form: str) -> None:
    shapes = Shapes(1, 1, 1, q_len, kv_len, 8, 8)
    assert mask_form(Recipe(mask), shapes) == form


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("score", [None, scores.HeadBias(torch.ones(4))], ids=["mask", "bias"])
def test_empty_rows_have_zero_gradients(backend: str, score: Score | None) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(12))
    out = am.attention(q, k, v, Recipe(masks.Causal().shift(q=-5), score), backend=backend)
    assert not out[..., :5, :].any()
    out.square().sum().backward()
    assert q.grad is not None
    assert k.grad is not None
    assert not q.grad[..., :5, :].any()
    assert bool(k.grad.isfinite().all())


@pytest.mark.parametrize("backend", ON_CPU)
def test_half_types(backend: str) -> None:
    recipe = Recipe(masks.Causal(), scores.Alibi(num_heads=4))
    tensors = inputs(300, dtype=torch.bfloat16)
    out = am.attention(*tensors, recipe, backend=backend)
    expected = am.reference(*tensors, recipe)
    eager = am.attention(*tensors, recipe, backend="eager")
    allowed = 2 * float((eager.double() - expected).abs().max())
    assert float((out.double() - expected).abs().max()) <= allowed


def test_gradient_of_a_bias_goes_through_math() -> None:
    bias = torch.linspace(-1, 1, 4).requires_grad_()
    tensors = inputs(12)
    recipe = Recipe(masks.Causal(), scores.HeadBias(bias) >> scores.Alibi(num_heads=4))
    am.attention(*tensors, recipe, backend="sdpa_math").square().sum().backward()
    truth = torch.linspace(-1, 1, 4).requires_grad_()
    recipe = Recipe(masks.Causal(), scores.HeadBias(truth) >> scores.Alibi(num_heads=4))
    am.reference(*tensors, recipe).square().sum().backward()
    torch.testing.assert_close(bias.grad, truth.grad, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="sdpa_flash: this kernel returns no gradient of the bias"):
        am.attention(*tensors, Recipe(score=scores.HeadBias(bias)), backend="sdpa_flash")


def test_heads_whose_values_are_apart_in_memory() -> None:
    x = torch.randn(33, 16, 2, 4).permute(2, 3, 0, 1)
    out = am.attention(x, x, x, masks.Causal(), backend="sdpa_flash")
    torch.testing.assert_close(out.double(), am.reference(x, x, x, masks.Causal()), atol=1e-5, rtol=0)


def test_dense_mask_is_bool_and_heads_are_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}
    from attn_mods.backends import sdpa

    def spy(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, enable_gqa: bool, **others: Any) -> Tensor:
        assert not enable_gqa
        seen.update(k=k, v=v, mask=attn_mask)
        return q

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", spy)
    am.attention(*inputs(12), masks.SlidingWindow(3), backend="sdpa_math")
    assert seen["mask"].dtype == torch.bool
    assert seen["k"].is_contiguous()
    assert seen["k"].shape == (2, 4, 12, 16)
    assert torch.equal(seen["mask"][0, 0], masks.SlidingWindow(3).dense(12, 12))


@pytest.mark.parametrize(
    ("arguments", "recipe", "reason"),
    [
        ({"return_lse": True}, Recipe(), "returns no lse"),
        ({}, Recipe(sink=torch.zeros(4)), "has no sink"),
        ({}, Recipe(score=scores.Softcap(3.0)), "softcap is not an added bias"),
        ({"kernel_options": {"BLOCK_M": 32}}, Recipe(), "has no kernel_options"),
        ({"invariant": True}, Recipe(), "chooses its tiles by the sizes"),
    ],
    ids=["lse", "sink", "softcap", "options", "invariant"],
)
@pytest.mark.parametrize("backend", ON_CPU)
def test_refusals(backend: str, arguments: dict[str, object], recipe: Recipe, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"{backend}: .*{reason}"):
        am.attention(*inputs(8), recipe, backend=backend, **arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize("backend", NOT_ON_CPU)
def test_kernels_of_a_gpu_are_refused_on_a_cpu(backend: str) -> None:
    with pytest.raises(ValueError, match=f"{backend}: this kernel does not run on cpu"):
        am.attention(*inputs(8), backend=backend)


@pytest.mark.parametrize(
    ("backend", "dtype", "sizes", "recipe", "reason"),
    [
        ("sdpa_flash", torch.float32, (64, 64), Recipe(), "needs float16 or bfloat16"),
        ("sdpa_flash", torch.float16, (64, 64), Recipe(masks.SlidingWindow(3)), "is handed no mask"),
        ("sdpa_flash", torch.float16, (264, 264), Recipe(), "at most 256"),
        ("sdpa_cudnn", torch.float16, (136, 136), Recipe(), "at most 128"),
        ("sdpa_cudnn", torch.float16, (64, 32), Recipe(), "values as wide as keys"),
        ("sdpa_efficient", torch.float64, (64, 64), Recipe(), "does not compute in torch.float64"),
        ("sdpa_efficient", torch.float16, (12, 12), Recipe(), "multiple of 8"),
        ("sdpa_efficient", torch.bfloat16, (64, 64), Recipe(score=scores.Alibi(num_heads=4)), "would be rounded"),
        ("sdpa_flash", torch.float16, (64, 64), Recipe(masks.Causal()), None),
        ("sdpa_cudnn", torch.bfloat16, (128, 128), Recipe(masks.Causal()), None),
        ("sdpa_efficient", torch.float32, (64, 64), Recipe(masks.SlidingWindow(3)), None),
    ],
)
def test_limits_on_a_gpu(
    backend: str, dtype: torch.dtype, sizes: tuple[int, int], recipe: Recipe, reason: str | None
) -> None:
    shapes = Shapes(1, 4, 4, 128, 128, *sizes)
    found = get(backend).supports(recipe, shapes, dtype, torch.device("cuda"), Needs())
    assert (found is None) == (reason is None), found
    if reason is not None:
        assert reason in str(found)


@pytest.mark.parametrize("composed", [False, True])
def test_what_a_score_has_against_a_backend_is_said_before_it_runs(composed: bool) -> None:
    bias: Score = scores.PairBias(torch.empty(1, 1, 46_341, 46_341, device="meta"))
    recipe = Recipe(score=(bias >> scores.Alibi(num_heads=4)).shift(q=0) if composed else bias)
    shapes = Shapes(1, 4, 4, 8, 8, 64, 64)
    cpu = torch.device("cpu")
    for backend in ON_CPU:
        reason = get(backend).supports(recipe, shapes, torch.float32, cpu, Needs())
        assert "too many for an index of 32 bits" in str(reason)
        with pytest.raises(ValueError, match="pair_bias: bias must have at most"):
            recipe.score.score_mod(backend)  # type: ignore[union-attr]
    assert get("flex").supports(recipe, shapes, torch.float32, cpu, Needs()) is None


def test_c71_float_table_is_refused_and_a_bool_one_is_not_added() -> None:
    tensors = inputs(8)
    table = torch.ones(8, 8).tril()
    for wrong in (table, table.bool()):
        with pytest.raises(TypeError, match=r"attention: the recipe must be a Recipe.*Mask\.from_mask_mod.*Score\."):
            am.attention(*tensors, wrong)  # type: ignore[call-overload]
    kept = table.bool()
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kept[q_idx, kv_idx], name="table")
    out = am.attention(*tensors, mask, backend="sdpa_math")
    torch.testing.assert_close(out.double(), am.reference(*tensors, masks.Causal()), atol=1e-5, rtol=1e-5)
    assert not math.isnan(float(out.sum()))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize(("backend", "held"), [("sdpa_flash", 0), ("sdpa_math", 1)])
def test_calls_alike_are_held_to_the_kernel_where_torch_takes_another(
    backend: str, held: int, heads: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attn_mods.backends import sdpa

    recipe = Recipe(masks.Causal(), scale=0.3)
    q, k, v = (torch.randn(1, count, 24, 16, requires_grad=training) for count in (4, heads, heads))
    first = am.attention(q, k, v, recipe, backend=backend)
    times: list[object] = []
    hold = sdpa.sdpa_kernel
    monkeypatch.setattr(sdpa, "sdpa_kernel", lambda kernel: times.append(kernel) or hold(kernel))
    assert torch.equal(am.attention(q, k, v, recipe, backend=backend), first)
    assert len(times) == held
