"""What is kept of a call serves calls alike, and no other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, dispatch, masks, prepared_calls, scores
from tests.attention_inputs import inputs


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    prepared_calls.forget()
    yield
    prepared_calls.forget()


@pytest.fixture
def checks_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    check = dispatch._checked

    def counted(*arguments: Any, **keywords: Any) -> Any:
        made.append("checked")
        return check(*arguments, **keywords)

    monkeypatch.setattr(dispatch, "_checked", counted)
    return made


def right(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, **keywords: Any) -> None:
    out = am.attention(q, k, v, recipe, **keywords)
    torch.testing.assert_close(out.double(), am.reference(q, k, v, recipe), atol=1e-5, rtol=1e-5)


RECIPES = {
    "nothing": Recipe(),
    "causal": Recipe(masks.Causal()),
    "documents": Recipe(masks.Document.from_lengths([3, 0, 5])),
    "score": Recipe(masks.Causal(), scores.Alibi(num_heads=4)),
    "sink": Recipe(masks.Causal(), sink=torch.tensor([0.0, 1.0, -1.0, 2.0])),
}


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa_math", "flex"])
@pytest.mark.parametrize("name", RECIPES)
def test_calls_alike_are_checked_once(name: str, backend: str, checks_made: list[str]) -> None:
    recipe = RECIPES[name]
    if backend == "sdpa_math" and name == "sink":
        pytest.skip("sdpa has no sink")
    for seed in range(3):
        torch.manual_seed(seed)
        q, k, v = (torch.randn_like(each) for each in inputs(8))
        right(recipe, q, k, v, backend=backend)
    assert len(checks_made) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q[:, :, :4], k[:, :, :4], v[:, :, :4]),
        lambda q, k, v: (q.double(), k.double(), v.double()),
        lambda q, k, v: (q.requires_grad_(), k, v),
        lambda q, k, v: (q, k.detach().clone().requires_grad_(), v),
    ],
    ids=["lengths", "dtype", "gradient of q", "gradient of k"],
)
def test_other_tensors_are_checked_again(change: Any, checks_made: list[str]) -> None:
    recipe, (q, k, v) = Recipe(masks.Causal()), inputs(8)
    right(recipe, q, k, v)
    right(recipe, *change(q, k, v))
    assert len(checks_made) == 2


def test_a_tensor_of_the_recipe_that_changes_is_seen(checks_made: list[str]) -> None:
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    recipe, (q, k, v) = Recipe(masks.Causal(), scores.Alibi(slopes=slopes)), inputs(8)
    for backend in ("eager", "flex"):
        checks_made.clear()
        right(recipe, q, k, v, backend=backend)
        slopes.mul_(3)
        right(recipe, q, k, v, backend=backend)
        slopes.requires_grad_()
        out = am.attention(q, k, v, recipe, backend="eager")
        assert out.requires_grad
        slopes.requires_grad_(False)
        assert len(checks_made) == 3


def test_a_table_of_documents_that_becomes_wrong_is_refused() -> None:
    cu_seqlens = torch.tensor([0, 3, 8], dtype=torch.int32)
    recipe, (q, k, v) = Recipe(masks.Document(cu_seqlens)), inputs(8)
    right(recipe, q, k, v, backend="eager")
    cu_seqlens[1] = 5
    right(recipe, q, k, v, backend="eager")


def test_a_users_function_is_not_kept(checks_made: list[str]) -> None:
    width = [2]
    recipe = Recipe(am.Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < width[0]))
    q, k, v = inputs(8)
    for wanted in (2, 5):
        width[0] = wanted
        right(recipe, q, k, v, backend="eager")
    assert len(checks_made) == 2


@pytest.mark.parametrize(
    ("keywords", "error"),
    [({"return_lse": 1}, "return_lse"), ({"invariant": 0}, "invariant"), ({"backend": "flax"}, "backend must be")],
    ids=str,
)
def test_what_equals_a_good_argument_is_still_refused(keywords: dict[str, Any], error: str) -> None:
    q, k, v = inputs(8)
    recipe = Recipe(masks.Causal())
    am.attention(q, k, v, recipe, backend="eager", return_lse=True, invariant=False)
    am.attention(q, k, v, recipe, backend="eager")
    with pytest.raises((TypeError, ValueError), match=error):
        am.attention(q, k, v, recipe, **{"backend": "eager"} | keywords)


def test_gradients_and_none_in_turns() -> None:
    recipe, (q, k, v) = Recipe(masks.Causal()), inputs(8)
    q.requires_grad_()
    for _ in range(2):
        assert am.attention(q, k, v, recipe, backend="eager").requires_grad
        with torch.no_grad():
            assert not am.attention(q, k, v, recipe, backend="eager").requires_grad
        with torch.inference_mode():
            assert am.attention(q, k, v, recipe, backend="eager").is_inference()


def test_autocast_is_not_taken_for_a_call_without() -> None:
    recipe, (q, k, v) = Recipe(masks.Causal()), inputs(8)
    assert am.attention(q, k, v, recipe, backend="eager").dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert am.attention(q, k, v, recipe, backend="eager").dtype == torch.bfloat16


def test_inside_of_vmap_nothing_is_kept(checks_made: list[str]) -> None:
    recipe = Recipe(masks.Causal())
    q, k, v = (torch.stack([each, each * 2]) for each in inputs(8))
    mapped = torch.vmap(lambda q, k, v: am.attention(q, k, v, recipe, backend="sdpa_math"))
    for _ in range(2):
        out = mapped(q, k, v)
    expected = torch.stack([am.attention(*each, recipe, backend="sdpa_math") for each in zip(q, k, v, strict=True)])
    torch.testing.assert_close(out, expected)
    assert len(checks_made) == 3


@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "flex"])
def test_nothing_of_q_k_and_v_is_kept(backend: str) -> None:
    recipe = Recipe(masks.Causal())
    q, k, v = (torch.randn_like(each) for each in inputs(8))
    if backend != "flex":
        q.requires_grad_()
    am.attention(q, k, v, recipe, backend=backend).sum()
    alive = [weakref.ref(each) for each in (q, k, v)]
    del q, k, v
    gc.collect()
    assert len(prepared_calls._kept) == 1
    assert [each() for each in alive] == [None] * 3


def test_a_recipe_with_a_large_table_is_not_kept() -> None:
    table = torch.zeros(1, 4, 300, 300)
    assert table.nbytes > prepared_calls.MOST_BYTES
    q, k, v = inputs(8)
    am.attention(q, k, v, Recipe(score=scores.PairBias(table[..., :8, :8].clone())), backend="eager")
    assert len(prepared_calls._kept) == 1
    q, k, v = (torch.randn(1, 4, 300, 8) for _ in range(3))
    am.attention(q, k, v, Recipe(score=scores.PairBias(table)), backend="eager")
    assert len(prepared_calls._kept) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(1, 4, 8, 16, device="meta"),
        lambda: torch.nested.nested_tensor([torch.randn(4, 8, 16), torch.randn(4, 5, 16)]),
    ],
    ids=["meta", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_what_is_no_plain_tensor_is_refused_by_name(make: Any) -> None:
    tensor = make()
    with pytest.raises((ValueError, TypeError), match="causal"):
        am.attention(tensor, tensor, tensor, Recipe(masks.Causal()))


def test_a_sink_of_another_size_is_refused() -> None:
    sink = torch.nn.Parameter(torch.zeros(4))
    recipe, (q, k, v) = Recipe(masks.Causal(), sink=sink), inputs(8)
    with torch.no_grad():
        am.attention(q, k, v, recipe, backend="eager")
        sink.data = torch.zeros(3)
        with pytest.raises(ValueError, match="sink"):
            am.attention(q, k, v, recipe, backend="eager")


def test_no_more_than_so_many_are_kept() -> None:
    q, k, v = inputs(4)
    for _ in range(prepared_calls.MOST + 5):
        am.attention(q, k, v, Recipe(masks.Causal()), backend="eager")
    assert len(prepared_calls._kept) == prepared_calls.MOST
