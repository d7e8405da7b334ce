"""nn.Attention: projections, grouped heads, learnable recipes, and decoding with a cache."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.nn import Attention, KVCache
from tests.refusals import assert_refused


def layer(recipe: Recipe | None = None, **arguments: object) -> Attention:
    torch.manual_seed(0)
    return Attention(32, 4, 2, recipe=recipe, **arguments)  # type: ignore[arg-type]


def learnable() -> Recipe:
    bias = scores.HeadBias(torch.linspace(-1, 1, 4)) >> scores.Softcap(5.0)
    mask = masks.SlidingWindow(torch.tensor([3, 4, 5, 6])) & masks.Causal()
    return Recipe(mask, bias, sink=torch.tensor([0.5, -1.0, 2.0, 0.0]))


def expected(module: Attention, x: Tensor, context: Tensor | None = None) -> Tensor:
    """The same written out, with the float64 reference in the middle."""
    source = x if context is None else context
    q = module.q_proj(x).reshape(*x.shape[:2], 4, -1).transpose(1, 2)
    k, v = (p(source).reshape(*source.shape[:2], 2, -1).transpose(1, 2) for p in (module.k_proj, module.v_proj))
    out = am.reference(q, k, v, module.recipe).to(x.dtype)
    return module.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))


@pytest.mark.parametrize("recipe", [None, Recipe(masks.Causal()), learnable()], ids=["plain", "causal", "learnable"])
@pytest.mark.parametrize("head_dim", [None, 5])
def test_equals_the_reference(recipe: Recipe | None, head_dim: int | None) -> None:
    module, x = layer(recipe, head_dim=head_dim), torch.randn(2, 12, 32)
    out = module(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out, expected(module, x))


def test_cross_attention() -> None:
    module = layer(Recipe(masks.KeyPadding(torch.tensor([3, 9]))))
    x, context = torch.randn(2, 5, 32), torch.randn(2, 9, 32)
    torch.testing.assert_close(module(x, context=context), expected(module, x, context))
    with pytest.raises(ValueError, match="causal: q_len != kv_len needs q_offset"):
        layer(Recipe(masks.Causal()))(x, context=context)
    layer(Recipe(masks.Causal()))(x, context=context, q_offset=4)


def test_learnable_tensors_are_parameters_and_train() -> None:
    module = layer(learnable())
    names = {name for name, _ in module.named_parameters() if name.startswith("recipe")}
    assert names == {"recipe__score__first__bias", "recipe__sink"}
    assert [name for name, _ in module.named_buffers()] == ["recipe__mask__left__window"]
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    x = torch.randn(2, 12, 32)
    before = module(x).detach()
    module(x).square().sum().backward()
    for name in names:
        gradient = dict(module.named_parameters())[name].grad
        assert gradient is not None
        assert bool(gradient.any())
    optimiser.step()
    assert not torch.allclose(module(x), before)
    torch.testing.assert_close(module(x), expected(module, x))


def test_constants_are_buffers() -> None:
    module = layer(Recipe(masks.Causal(), scores.Sandwich(4, 20)))
    assert [name for name, _ in module.named_buffers()] == ["recipe__score__table"]


def test_a_parameter_handed_in_is_shared() -> None:
    bias = nn.Parameter(torch.zeros(4))
    assert layer(Recipe(score=scores.HeadBias(bias))).recipe__score__bias is bias


def test_caller_keeps_its_tensors() -> None:
    bias = torch.zeros(4)
    module = layer(Recipe(score=scores.HeadBias(bias)))
    with torch.no_grad():
        module.recipe__score__bias.add_(1)
    assert not bias.any()


def test_state_dict_round_trip() -> None:
    source, target, x = layer(learnable()), layer(learnable()), torch.randn(2, 12, 32)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.1)
        source.recipe__mask__left__window.add_(2)
    target.load_state_dict(source.state_dict())
    torch.testing.assert_close(target(x), source(x))
    torch.testing.assert_close(target(x), expected(source, x))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_copies_are_equal_and_apart(how: str) -> None:
    module, x = layer(learnable()), torch.randn(2, 12, 32)
    module(x)
    if how == "deepcopy":
        twin = copy.deepcopy(module)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(module))
    else:
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(twin(x), module(x))
    before = module(x).detach()
    with torch.no_grad():
        twin.recipe__sink.fill_(3.0)
        twin.recipe__score__first__bias.mul_(-2)
    torch.testing.assert_close(twin(x), expected(twin, x))
    torch.testing.assert_close(module(x), before)


def test_moves_with_its_module() -> None:
    module, x = layer(learnable()).double(), torch.randn(2, 12, 32, dtype=torch.float64)
    assert module.recipe.tensors()["sink"].dtype == torch.float64
    assert module.recipe.tensors()["mask.left.window"].dtype == torch.int64
    torch.testing.assert_close(module(x), expected(module, x))
    meta = layer(Recipe(score=scores.HeadBias(torch.zeros(4)))).to("meta")
    assert meta.recipe.device == torch.device("meta")


def test_device_and_dtype() -> None:
    module = layer(Recipe(score=scores.HeadBias(torch.zeros(4))), device="meta", dtype=torch.bfloat16)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module.q_proj.weight.dtype == torch.bfloat16
    assert module.recipe__score__bias.dtype == torch.float32


@pytest.mark.parametrize("recipe", [Recipe(masks.Causal()), learnable()], ids=["causal", "learnable"])
@pytest.mark.parametrize("steps", [[1] * 12, [5, 1, 4, 2]], ids=["one by one", "in pieces"])
def test_decoding_equals_the_full_pass(recipe: Recipe, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attn_mods.nn.attention", lambda *a, **k: am.attention(*a, backend="eager", **k))
    module, x = layer(recipe), torch.randn(2, 12, 32)
    with torch.no_grad():
        full = module(x)
        cache = module.new_cache(2, 16)
        pieces, keys = [], cache.keys.data_ptr()
        for part in x.split(steps, dim=1):
            pieces.append(module(part, cache=cache))
    assert cache.length == 12
    assert cache.keys.data_ptr() == keys
    torch.testing.assert_close(torch.cat(pieces, 1), full)
    cache.reset()
    with torch.no_grad():
        torch.testing.assert_close(module(x, cache=cache), full)


def test_decoding_compiled() -> None:
    module, x = layer(Recipe(masks.SlidingWindow(3))), torch.randn(1, 6, 32)
    with torch.no_grad():
        full = module(x)
        cache = module.new_cache(1, 8)
        pieces = [module(part, cache=cache) for part in x.split([5, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full)


class TestCacheErrors:
    @staticmethod
    def cache() -> KVCache:
        return KVCache(2, 2, 8, 8)

    def test_a_call_that_fails_leaves_the_cache_as_it_was(self) -> None:
        module, x = layer(Recipe(masks.Causal())), torch.randn(2, 3, 32)
        cache = module.new_cache(2, 8)
        with torch.no_grad():
            module(x, cache=cache)
            with pytest.raises(ValueError, match="block_mask must be for"):
                module(x, cache=cache, block_mask=masks.Causal().block_mask(5))
            assert cache.length == 3
            module(x, cache=cache)
        assert cache.length == 6

    def test_other_device(self) -> None:
        with pytest.raises(ValueError, match=r'KVCache: k and v must be on cpu, got meta, meta; .*device="meta"'):
            self.cache().append(*torch.zeros(2, 2, 2, 1, 8, device="meta"))

    def test_other_dimensions(self) -> None:
        with pytest.raises(ValueError, match="KVCache: k and v must have 4 dimensions, got"):
            self.cache().append(*torch.zeros(2, 2, 2, 8))

    def test_full(self) -> None:
        with pytest.raises(ValueError, match="KVCache: it holds at most 8 positions, got 9"):
            self.cache().append(torch.zeros(2, 2, 9, 8), torch.zeros(2, 2, 9, 8))

    def test_other_batch(self) -> None:
        with pytest.raises(ValueError, match="k and v must fit the cache"):
            self.cache().append(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))

    def test_other_dtype(self) -> None:
        with pytest.raises(TypeError, match=r"k and v must be torch.float32, got torch.float64"):
            self.cache().append(*torch.zeros(2, 2, 2, 1, 8, dtype=torch.float64))

    def test_gradients(self) -> None:
        module = layer()
        with pytest.raises(ValueError, match=r"no gradient flows through a cache.*torch\.no_grad"):
            module(torch.randn(2, 3, 32), cache=module.new_cache(2, 8))

    @pytest.mark.parametrize("extra", [{"q_offset": 3}, {"context": torch.zeros(2, 3, 32)}], ids=["offset", "context"])
    def test_what_a_cache_does_not_go_with(self, extra: dict[str, object]) -> None:
        module = layer()
        with torch.no_grad(), pytest.raises(ValueError, match="a cache goes with neither context nor q_offset"):
            module(torch.randn(2, 3, 32), cache=module.new_cache(2, 8), **extra)


@pytest.mark.parametrize("shape", [(12, 32), (1, 2, 12, 32)], ids=str)
def test_other_dimensions_than_three(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"nn\.Attention: x must be \[B, length, embed_dim\] with embed_dim = 32, got"):
        layer()(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"nn\.Attention: context must be"):
        layer()(torch.zeros(2, 3, 32), context=torch.zeros(shape))


SIZES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no width": ({"embed_dim": 0}, ValueError, "embed_dim must be >= 1, got 0; pass the size of the input"),
    "negative width": ({"embed_dim": -32}, ValueError, "embed_dim must be >= 1, got -32"),
    "text as width": ({"embed_dim": "32"}, TypeError, "embed_dim must be an int, got '32'"),
    "bool as width": ({"embed_dim": True}, TypeError, "embed_dim must be an int, got True"),
    "no heads": ({"num_heads": 0}, ValueError, "num_heads must be >= 1, got 0; pass the number of query heads"),
    "half a head": ({"num_heads": 4.0}, TypeError, r"num_heads must be an int, got 4\.0"),
    "None as heads": ({"num_heads": None}, TypeError, "num_heads must be an int, got None"),
    "no key heads": ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be >= 1, got 0; pass the number of key heads"),
    "negative key heads": ({"num_kv_heads": -2}, ValueError, "num_kv_heads must be >= 1, got -2"),
    "key heads that do not divide": (
        {"num_kv_heads": 3},
        ValueError,
        "num_heads must be a multiple of num_kv_heads, got 4 and 3; choose num_kv_heads that divides num_heads",
    ),
    "heads that do not divide": (
        {"embed_dim": 30},
        ValueError,
        "embed_dim must be a multiple of num_heads, got 30 and 4; pass head_dim",
    ),
    "empty heads": ({"head_dim": 0}, ValueError, "head_dim must be >= 1, got 0; pass the size of a head"),
    "text as head": ({"head_dim": "8"}, TypeError, "head_dim must be an int, got '8'"),
    "dtype by name": ({"dtype": "float32"}, TypeError, r"dtype must be floating point, got 'float32'; pass torch\.f"),
    "integer dtype": ({"dtype": torch.int32}, TypeError, r"dtype must be floating point, got torch\.int32"),
    "no recipe": ({"recipe": 3}, TypeError, "the recipe must be a Recipe, Mask or Score, got 3"),
    "class of a mask": (
        {"recipe": masks.Causal},
        TypeError,
        r"the recipe must be a Recipe, Mask or Score, got <class .*; make one with Causal\(\.\.\.\)",
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_bad_modules(name: str) -> None:
    change, error, message = SIZES[name]
    arguments = {"embed_dim": 32, "num_heads": 4, "num_kv_heads": 2} | change
    assert_refused(lambda: Attention(**arguments), error, rf"^nn\.Attention: {message}")


X = torch.zeros(2, 8, 32)
INPUTS: dict[str, tuple[Callable[[Attention], object], type[Exception], str]] = {
    "None": (lambda module: module(None), TypeError, r"^nn\.Attention: x must be a tensor, got NoneType; convert it"),
    "array": (
        lambda module: module(np.zeros((2, 8, 32))),
        TypeError,
        "x must be a tensor, got ndarray; convert it",
    ),
    "text as context": (lambda module: module(X, context="a"), TypeError, "context must be a tensor, got str"),
    "width": (
        lambda module: module(X[..., :16]),
        ValueError,
        r"^nn\.Attention: x must be \[B, length, embed_dim\] with embed_dim = 32, got \(2, 8, 16\); unsqueeze",
    ),
    "width of the context": (
        lambda module: module(X, context=X[..., :16]),
        ValueError,
        r"context must be \[B, length, embed_dim\] with embed_dim = 32, got \(2, 8, 16\)",
    ),
    "batch of the context": (lambda module: module(X, context=X[:1]), ValueError, "must have the same batch size"),
    "dtype": (lambda module: module(X.double()), TypeError, "x must be torch.float32, got torch.float64; convert it"),
    "integers": (lambda module: module(X.long()), TypeError, "x must be torch.float32, got torch.int64"),
    "device": (lambda module: module(X.to("meta")), ValueError, "x must be on cpu as the module is, got meta; move it"),
    "no query": (lambda module: module(X[:, :0]), ValueError, "there must be at least one query and one key"),
    "no sample": (lambda module: module(X[:0]), ValueError, "at least one batch row, head and dimension"),
    "number as cache": (lambda module: module(X, cache=3), TypeError, "cache must be a KVCache, got 3; make one with"),
    "offset": (lambda module: module(X, q_offset="a"), TypeError, "q_offset must be an integer, got 'a'"),
    "block mask": (lambda module: module(X, block_mask=3), TypeError, "block_mask must be a BlockMask, got 3"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_bad_inputs(name: str) -> None:
    call, error, message = INPUTS[name]
    assert_refused(lambda: call(layer()), error, message)


def test_autocast_takes_other_dtypes() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer()(torch.randn(2, 8, 32).bfloat16()).dtype == torch.bfloat16


def test_a_layer_put_in_place_of_a_projection_checks_for_itself() -> None:
    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    module = layer()
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(module, name, Rounded(32, getattr(module, name).out_features))
    assert module(torch.randn(2, 8, 32, dtype=torch.float64)).shape == (2, 8, 32)


CACHES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no sample": (lambda: KVCache(0, 2, 8, 8), ValueError, "batch must be >= 1, got 0"),
    "negative": (lambda: layer().new_cache(-1, 8), ValueError, "batch must be >= 1, got -1"),
    "text": (lambda: layer().new_cache("a", 8), TypeError, "batch must be an int, got 'a'"),
    "float": (
        lambda: layer().new_cache(1, 8.0),
        TypeError,
        r"max_length must be an int, got 8\.0",
    ),
    "no room": (lambda: layer().new_cache(1, 0), ValueError, "max_length must be >= 1, got 0"),
    "no heads": (lambda: KVCache(1, 0, 8, 8), ValueError, "num_kv_heads must be >= 1, got 0"),
    "no width": (lambda: KVCache(1, 2, 8, 0), ValueError, "head_dim must be >= 1, got 0"),
    "dtype by name": (lambda: KVCache(1, 2, 8, 8, dtype="half"), TypeError, "dtype must be floating point, got 'half'"),
    "integer dtype": (lambda: KVCache(1, 2, 8, 8, dtype=torch.int64), TypeError, "dtype must be floating point, got"),
    "text as keys": (lambda: KVCache(1, 2, 8, 8).append("a", "b"), TypeError, "k must be a tensor, got str"),
    "no values": (
        lambda: KVCache(1, 2, 8, 8).append(torch.zeros(1, 2, 1, 8), None),
        TypeError,
        "v must be a tensor",
    ),
    "too far": (lambda: KVCache(1, 2, 8, 8).advance(9), ValueError, "it holds at most 8 positions, got 9"),
    "backwards": (lambda: KVCache(1, 2, 8, 8).advance(-1), ValueError, "new must be >= 0, got -1"),
    "by a text": (
        lambda: KVCache(1, 2, 8, 8).advance("a"),
        TypeError,
        "new must be an int, got 'a'",
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_bad_caches(name: str) -> None:
    make, error, message = CACHES[name]
    assert_refused(make, error, f"^KVCache: {message}")


def test_repr_names_the_recipe() -> None:
    assert "num_kv_heads=2, head_dim=8, recipe=causal" in repr(layer(Recipe(masks.Causal())))


def test_inside_a_users_compile() -> None:
    torch._dynamo.reset()
    module, x = layer(learnable()), torch.randn(2, 12, 32)
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected(module, x))
        module.recipe__sink.fill_(1.0)
        torch.testing.assert_close(compiled(x), expected(module, x))
    torch._dynamo.reset()
