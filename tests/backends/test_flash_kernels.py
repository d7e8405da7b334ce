"""flash3, flash4 and nested: what is handed to the kernels, which dense stand-ins play here, and what is refused."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import Needs, Shapes, flash3, flash4, nested
from attn_mods.backends.base import Call
from attn_mods.backends.flash3 import FLASH3
from attn_mods.backends.flash4 import FLASH4
from attn_mods.backends.nested import NESTED
from tests.attention_inputs import inputs

CUDA = torch.device("cuda")
SHAPES = Shapes(2, 4, 2, 40, 40, 32, 32)


def dense(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, left: float, right: float, cap: float, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of q [q_len, H, D] with last query and last key aligned; out and, without the sink, lse [H, q_len]."""
    groups = q.shape[1] // k.shape[1]
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])
    keys, values = (each.repeat_interleave(groups, 1) for each in (k, v))
    weights = torch.einsum("qhd,khd->hqk", q, keys) * (scale or 1 / math.sqrt(q.shape[2]))
    weights = cap * torch.tanh(weights / cap) if cap else weights
    weights = weights.masked_fill((j < i - left) | (j > i + right), -math.inf)
    lse = weights.logsumexp(-1)
    total = lse if sink is None else torch.logaddexp(lse, sink[:, None].expand_as(lse))
    share = torch.exp(weights - total[..., None])  # NaN where nothing is kept
    return torch.einsum("hqk,khd->qhd", share, values), lse


def batched(q: Tensor, k: Tensor, v: Tensor, *bounds: Any) -> tuple[Tensor, Tensor]:
    parts = [dense(*each, *bounds) for each in zip(q, k, v, strict=True)]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])


def sequences(q: Tensor, k: Tensor, v: Tensor, q_cut: Tensor, kv_cut: Tensor, *bounds: Any) -> tuple[Tensor, Tensor]:
    assert q_cut.dtype == kv_cut.dtype == torch.int32
    places = zip(q_cut[:-1].tolist(), q_cut[1:].tolist(), kv_cut[:-1].tolist(), kv_cut[1:].tolist(), strict=True)
    parts = [dense(q[a:b], k[c:d], v[c:d], *bounds) for a, b, c, d in places]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], 1)


def bounds_4(window_size: tuple[int | None, int | None]) -> tuple[float, float]:
    left, right = (math.inf if bound is None else bound for bound in window_size)
    assert left >= 0 and right >= 0
    return left, right


def flash_attn_func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None,
    window_size: tuple[int | None, int | None],
    return_lse: bool,
    softcap: float = 0.0,
    learnable_sink: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    out, lse = batched(q, k, v, softmax_scale, *bounds_4(window_size), softcap, learnable_sink)
    return out, lse if return_lse else None


def flash_attn_varlen_func_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    window_size: tuple[int | None, int | None],
    return_lse: bool,
    softcap: float = 0.0,
    learnable_sink: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    bounds = softmax_scale, *bounds_4(window_size), softcap, learnable_sink
    out, lse = sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, *bounds)
    return out, lse if return_lse else None


def flash_attn_func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None,
    causal: bool,
    return_attn_probs: bool,
    softcap: float = 0.0,
) -> Any:
    out, lse = batched(q, k, v, softmax_scale, math.inf, 0 if causal else math.inf, softcap, None)
    return (out, lse) if return_attn_probs else out


def flash_attn_varlen_func_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None,
    causal: bool,
    return_attn_probs: bool,
    softcap: float = 0.0,
) -> Any:
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    bounds = softmax_scale, math.inf, 0 if causal else math.inf, softcap, None
    out, lse = sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, *bounds)
    return (out, lse) if return_attn_probs else out


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages, and a card that they are for."""
    functions = {
        "flash_attn.cute": {"flash_attn_func": flash_attn_func_4, "flash_attn_varlen_func": flash_attn_varlen_func_4},
        "fa3_fwd_interface": {"flash_attn_func": flash_attn_func_3, "flash_attn_varlen_func": flash_attn_varlen_func_3},
        "flash_attn": {},
    }
    for name, members in functions.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for backend in (flash3, flash4):
        monkeypatch.setattr(backend, "installed", lambda module: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


SINK = torch.tensor([0.0, 1.0, -1.0, -math.inf])
RECIPES = {
    "plain": (Recipe(), 40, 40, None),
    "scale": (Recipe(scale=0.3), 40, 40, None),
    "causal": (Recipe(masks.Causal()), 40, 40, None),
    "causal, last queries": (Recipe(masks.Causal()), 7, 40, 33),
    "causal with softcap": (Recipe(masks.Causal(), scores.Softcap(2.0)), 40, 40, None),
    "window": (Recipe(masks.SlidingWindow(5)), 40, 40, None),
    "window, last queries": (Recipe(masks.SlidingWindow(5)), 7, 40, 33),
    "left bound alone": (Recipe(masks.WindowAsymmetric(left=3, right=None)), 40, 40, None),
    "right bound alone": (Recipe(masks.WindowAsymmetric(left=None, right=2)), 40, 40, None),
    "documents": (Recipe(masks.Document.from_lengths([13, 0, 27])), 40, 40, None),
    "causal documents": (Recipe(masks.Document.from_lengths([13, 0, 27]) & masks.Causal()), 40, 40, None),
    "windowed documents": (Recipe(masks.Document.from_lengths([13, 27]) & masks.SlidingWindow(4)), 40, 40, None),
    "capped documents": (Recipe(masks.Document.from_lengths([13, 27]), scores.Softcap(2.0)), 40, 40, None),
    "sink": (Recipe(masks.Causal(), sink=SINK), 40, 40, None),
    "one sink for all heads": (Recipe(masks.Causal(), sink=torch.tensor([0.5])), 40, 40, None),
}
WITHOUT_WINDOW = {name for name in RECIPES if "window" not in name and "bound" not in name}
PACKED = {"documents"}  # torch has no kernel of causal ones on a CPU


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("wants_lse", [False, True])
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *((FLASH4, name) for name in RECIPES),
        *((FLASH3, name) for name in sorted(WITHOUT_WINDOW)),
        *((NESTED, name) for name in sorted(PACKED)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_the_kernel_gets_is_the_recipe(backend: Any, name: str, wants_lse: bool) -> None:
    if wants_lse and backend is NESTED:
        pytest.skip("nested has no lse")
    recipe, q_len, kv_len, offset = RECIPES[name]
    q, k, v = inputs(q_len, kv_len)
    placed = recipe.place(q_len, kv_len, offset)
    call = Call(q, k, v, placed, Needs(lse=wants_lse))
    assert backend.limits(placed, call.shapes, torch.bfloat16, CUDA, call.needs) is None
    out, lse = backend.run(call)
    expected, expected_lse = am.reference(q, k, v, recipe, q_offset=offset, return_lse=True)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    assert (lse is not None) == wants_lse
    if lse is not None:
        torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backend", "recipe", "needs", "dtype", "reason"),
    [
        (FLASH4, Recipe(), Needs(), torch.float32, "needs float16 or bfloat16"),
        (FLASH4, Recipe(masks.Causal(), scores.Alibi(num_heads=4)), Needs(), torch.float16, "the score alibi"),
        (FLASH4, Recipe(masks.PrefixLm(5)), Needs(), torch.float16, "prefix_lm is no band"),
        (FLASH4, Recipe(masks.Causal().shift(kv=3)), Needs(), torch.float16, "negative bound for none"),
        (FLASH4, Recipe(), Needs(kernel_options=True), torch.float16, "no kernel_options"),
        (FLASH4, Recipe(), Needs(invariant=True), torch.float16, "how to split"),
        (FLASH4, Recipe(), Needs(compiling=True), torch.float16, "cannot be traced"),
        (FLASH4, Recipe(sink=torch.zeros(4, dtype=torch.float64)), Needs(), torch.float16, "no sink in float64"),
        (FLASH3, Recipe(), Needs(), torch.float16, "needs bfloat16"),
        (FLASH3, Recipe(), Needs(input_gradients=True), torch.bfloat16, "no backward kernel"),
        (FLASH3, Recipe(masks.SlidingWindow(5)), Needs(), torch.bfloat16, "has no window"),
        (FLASH3, Recipe(masks.Causal()), Needs(compiling=True), torch.bfloat16, "cannot be traced"),
        (NESTED, Recipe(masks.Causal()), Needs(), torch.float16, "there are none"),
        (NESTED, Recipe(masks.Document.from_lengths([40])), Needs(lse=True), torch.float16, "returns no lse"),
        (
            NESTED,
            Recipe(masks.Document.from_lengths([40]) & masks.SlidingWindow(4)),
            Needs(),
            torch.float16,
            "has no window",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_refused(backend: Any, recipe: Recipe, needs: Needs, dtype: torch.dtype, reason: str) -> None:
    refused = backend.limits(recipe, SHAPES, dtype, CUDA, needs)
    assert refused is not None and reason in refused.text


@pytest.mark.parametrize("backend", [FLASH3, FLASH4, NESTED], ids=lambda backend: backend.name)
def test_a_cpu_is_refused(backend: Any) -> None:
    refused = backend.limits(RECIPES["documents"][0], SHAPES, torch.bfloat16, torch.device("cpu"), Needs())
    assert refused is not None and "does not run on cpu" in refused.text


@pytest.mark.parametrize(
    ("backend", "module", "package"), [(FLASH3, flash3, "fa3-fwd"), (FLASH4, flash4, "flash-attn-4")]
)
def test_a_package_that_is_missing_is_named(
    backend: Any, module: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "installed", lambda name: False)
    refused = backend.limits(Recipe(masks.Causal()), SHAPES, torch.bfloat16, CUDA, Needs())
    assert refused is not None and refused.package == package and "not installed" in refused.text


@pytest.mark.parametrize(
    ("backend", "capability", "reason"), [(FLASH3, (10, 0), "Hopper"), (FLASH4, (8, 0), "9.0 and later")]
)
def test_other_cards_are_refused(
    backend: Any, capability: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    refused = backend.limits(Recipe(masks.Causal()), SHAPES, torch.bfloat16, CUDA, Needs())
    assert refused is not None and reason in refused.text


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_nested_says_that_no_document_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    shortest = []

    def kernel(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        shortest.extend(each._get_min_seqlen() for each in (q, k, v))
        return q

    monkeypatch.setattr(nested, "scaled_dot_product_attention", kernel)
    recipe, q_len, kv_len, offset = RECIPES["causal documents"]
    NESTED.run(Call(*inputs(q_len, kv_len), recipe.place(q_len, kv_len, offset), Needs()))
    assert len(shortest) == 3 and min(shortest) > 0  # with 0 torch takes no fused kernel


def test_nested_is_named() -> None:
    assert nested.NAME in str(NESTED.limits(Recipe(masks.Causal()), SHAPES, torch.float16, CUDA, Needs()))
