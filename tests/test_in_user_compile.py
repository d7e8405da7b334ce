"""attention() inside a user's torch.compile(fullgraph=True)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import attn_mods as am
from attn_mods import Recipe, masks, registry, scores
from attn_mods.backends.block_mask_cache import block_mask_for, block_mask_in_graph
from attn_mods.mask import Mask
from attn_mods.parameters import from_structure
from attn_mods.score import Score
from tests.attention_inputs import inputs

Arguments = dict[str, Any]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Each test counts its own recompilations."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(q: Tensor, k: Tensor, v: Tensor, recipe: Any, arguments: Arguments) -> Tensor:
    """What a user compiles: attention between other operations."""
    return am.attention(q * 2, k, v, recipe, **arguments) + 1


def assert_layer(function: Any, tensors: tuple[Tensor, Tensor, Tensor], recipe: Any, **arguments: Any) -> None:
    q, k, v = tensors
    with torch.no_grad():
        out = function(q, k, v, recipe, arguments)
        expected = am.reference(q * 2, k, v, recipe, q_offset=arguments.get("q_offset")) + 1
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def traced(function: Any) -> Any:
    """Compiled without code generation: what Dynamo and the operator's fake make of it."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_a22_lengths_change() -> None:
    compiled = torch.compile(layer, fullgraph=True)
    before = counters["stats"]["unique_graphs"]
    for length in (100, 140, 150, 270):
        assert_layer(compiled, inputs(length), masks.Causal(), backend="flex")
    assert counters["stats"]["unique_graphs"] - before <= 3


def test_windows_and_offsets_change() -> None:
    compiled = traced(layer)
    before = counters["stats"]["unique_graphs"]
    for window, q_len, kv_len in ((20, 100, 140), (30, 130, 150), (40, 135, 160)):
        offset = kv_len - q_len
        assert_layer(compiled, inputs(q_len, kv_len), masks.SlidingWindow(window), q_offset=offset, backend="flex")
    assert counters["stats"]["unique_graphs"] - before <= 2


def test_documents_made_outside() -> None:
    compiled = traced(layer)
    for lengths in ([30, 0, 70], [99, 1], [60, 60, 20]):
        mask = masks.Document.from_lengths(lengths) & masks.Causal()
        assert_layer(compiled, inputs(sum(lengths)), mask, backend="flex")


def test_everything_at_once() -> None:
    mask = (masks.SlidingWindow(30) | masks.GlobalPlusWindow(2, torch.arange(140) < 3)) & masks.KeyPadding(
        torch.tensor([100, 140])
    )
    score = scores.Softcap(5.0) >> scores.Alibi(num_heads=4)
    compiled = torch.compile(layer, fullgraph=True)
    assert_layer(compiled, inputs(140), Recipe(mask, score, sink=torch.randn(4), scale=0.2), backend="flex")


# Their numbers are written into the rule as text, which Dynamo has no other way to do than outside of a graph if they
# change.
OF_ONE_FLOAT = {"softcap", "log_n_scale"}


@pytest.mark.parametrize("name", am.names(kind="mask") + am.names(kind="score"))
@torch._dynamo.config.patch(recompile_limit=16)
def test_every_entry_is_traced(name: str) -> None:
    compiled = traced(layer)
    for case in registry.info(name).cases.values():  # by one function, in which what differs becomes a symbol
        if name in OF_ONE_FLOAT:
            torch._dynamo.reset()
        q_len, kv_len = (case.lengths or ((45, 45),))[-1]
        part = case.make(q_len, kv_len, "cpu")
        batch, heads = Recipe.of(part).batch_and_heads()
        tensors = inputs(q_len, kv_len, batch=batch, heads=max(heads, 2), key_heads=1, head_dim=8)
        offset = None if q_len == kv_len else 0
        assert_layer(compiled, tensors, part, q_offset=offset, backend="flex")


def bucket_table(buckets: int, max_distance: int) -> scores.T5Bucket:
    return scores.T5Bucket(torch.randn(2, buckets), bidirectional=False, max_distance=max_distance)


@pytest.mark.parametrize(
    "recipes",
    [
        [bucket_table(32, 64), bucket_table(32, 128), bucket_table(16, 128)],
        [scores.RelativeBiasTable(torch.randn(2, columns)) for columns in (5, 91, 21)],
        [scores.RelativeBiasTable(torch.randn(heads, 9)) for heads in (2, 3)],
        [scores.PairBias(torch.randn(1, heads, 45, 45)) for heads in (2, 3)],
        [scores.PairBias(torch.randn(1, 45, 45, 2).permute(0, 3, 1, 2))],
        [masks.SlidingTile((9, 5), (3, 1), kernel) for kernel in ((1, 3), (3, 1))],
        [masks.Area(45, 3), masks.Area(45, 5)],
    ],
    ids=["t5_bucket", "relative_bias_table", "heads", "heads of pair_bias", "permuted", "sliding_tile", "area"],
)
def test_tables_of_other_sizes_and_other_numbers(recipes: list[Score | Mask]) -> None:
    compiled = torch.compile(layer, fullgraph=True)
    for recipe in recipes:
        heads = max(recipe.batch_and_heads()[1], 2)
        assert_layer(compiled, inputs(45, heads=heads, key_heads=heads), recipe, backend="flex")


def test_tables_of_any_number_of_samples() -> None:
    compiled = traced(layer)
    before = counters["stats"]["unique_graphs"]
    for batch in (2, 3, 5, 4):
        gates = scores.Forgetting(-torch.rand(batch, 2, 45))
        assert_layer(compiled, inputs(45, batch=batch, heads=2, key_heads=2), gates, backend="flex")
    assert counters["stats"]["unique_graphs"] - before == 2


IN_THE_GRAPH: dict[str, tuple[Callable[[Tensor], Score | Mask], list[Tensor]]] = {
    "head_bias": (lambda table: scores.HeadBias(table * 2), [torch.randn(2)]),
    "alibi": (lambda table: scores.Alibi(slopes=table.exp()), [torch.randn(2)]),
    "pair_bias": (lambda table: scores.PairBias(table * 2), [torch.randn(1, 2, 45, 45)]),
    "relative_bias_table": (lambda table: scores.RelativeBiasTable(table * 2), [torch.randn(2, 9), torch.randn(2, 21)]),
    "view of t5_bucket": (lambda table: scores.T5Bucket(table.T), [torch.randn(32, 2)]),
    "key_padding": (lambda lengths: masks.KeyPadding(lengths + 1), [torch.tensor([30])]),
    "sliding_window": (lambda windows: masks.SlidingWindow(windows + 1), [torch.tensor([3, 8])]),
    "document": (lambda ids: masks.Document(ids=ids // 2), [torch.arange(45) // 3]),
    "every second number": (lambda numbers: masks.SlidingWindow(numbers[::2]), [torch.arange(3, 7)]),
}


@pytest.mark.parametrize("name", IN_THE_GRAPH)
def test_what_is_computed_in_the_graph(name: str) -> None:
    make, parameters = IN_THE_GRAPH[name]

    def layer(q: Tensor, k: Tensor, v: Tensor, parameter: Tensor) -> Tensor:
        return am.attention(q, k, v, make(parameter), backend="flex")

    compiled = torch.compile(layer, fullgraph=True)
    q, k, v = inputs(45, heads=2, key_heads=2)
    for parameter in parameters:
        with torch.no_grad():
            expected = am.reference(q, k, v, make(parameter))
            torch.testing.assert_close(compiled(q, k, v, parameter).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "chosen"),
    [
        (masks.Causal(), "sdpa_flash"),
        (Recipe(masks.SlidingWindow(5), scores.Softcap(2.0), sink=torch.ones(4)), "eager"),
    ],
    ids=["causal", "window, softcap and sink"],
)
def test_training_on_a_cpu(recipe: Recipe | Mask, chosen: str) -> None:
    ours = [tensor.requires_grad_() for tensor in inputs(20)]
    assert am.explain(*ours, recipe).chosen == chosen
    traced(layer)(*ours, recipe, {}).square().sum().backward()
    truth = [tensor.detach().requires_grad_() for tensor in ours]
    (am.reference(truth[0] * 2, *truth[1:], recipe) + 1).square().sum().backward()
    for mine, theirs in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-3, rtol=1e-3)


def odd_rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (q_idx + kv_idx) % 3 > 0


def test_a_users_rule_needs_its_block_mask() -> None:
    mask = Mask.from_mask_mod(odd_rule)
    for backend in ("auto", "flex"):
        with torch.no_grad(), pytest.raises(Exception, match="made outside and passed in"):
            traced(layer)(*inputs(40), mask, {"backend": backend})
        torch._dynamo.reset()
    assert_layer(traced(layer), inputs(40), mask, block_mask=mask.block_mask(40), backend="flex")


LENGTHS = torch.tensor([30, 40])
# torch's own, of the lookup of a table that Dynamo traces under vmap.
LOOKUP_WARNING = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@LOOKUP_WARNING
@pytest.mark.parametrize("backend", ["flex", "eager"])
def test_a_users_rule_that_reads_the_batch(backend: str) -> None:
    mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < LENGTHS[b], frame="keys", name="padding")
    lists = mask.block_mask(40, B=2)
    assert_layer(traced(layer), inputs(40), mask, block_mask=lists, backend=backend)
    with torch.no_grad():
        out = traced(layer)(*inputs(40), None, {"block_mask": lists, "backend": backend})
    assert bool(out.isfinite().all())
    one = am.create_block_mask(mask.mask_mod(), None, None, 40, 40, "cpu")
    with torch.no_grad(), pytest.raises(Exception, match="block_mask must have B = 2, the rule depends on it"):
        traced(layer)(*inputs(40), mask, {"block_mask": one, "backend": backend})


@LOOKUP_WARNING
def test_a_users_rule_made_while_tracing_is_taken_to_read_batch_and_head() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        longer = lengths + 1
        mask = Mask.from_mask_mod(lambda b, h, q_idx, kv_idx: kv_idx < longer[b], frame="keys", name="padding")
        return am.attention(q, k, v, mask, backend="eager")

    q, k, v = inputs(40)
    out = traced(attend)(q, k, v, torch.tensor([3, 20]))
    expected = am.reference(q, k, v, masks.KeyPadding(torch.tensor([4, 21])))
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_sizes_of_a_block_mask_are_checked_while_tracing() -> None:
    with torch.no_grad(), pytest.raises(Exception, match="block_mask must be for"):
        traced(layer)(*inputs(40), masks.SlidingWindow(4), {"block_mask": masks.SlidingWindow(4).block_mask(50)})


def test_bad_input_is_refused_while_tracing() -> None:
    with pytest.raises(Exception, match="q_len != kv_len needs q_offset"):
        traced(layer)(*inputs(3, 8), masks.Causal(), {})


@pytest.mark.parametrize("separate_full_blocks", [True, False])
def test_lists_in_the_graph_are_the_cached_ones(separate_full_blocks: bool) -> None:
    mask = masks.SlidingWindow(torch.tensor([5, 200])) & masks.KeyPadding(torch.tensor([100, 300, 260]))
    arguments = (mask, 300, 300, torch.device("cpu"), separate_full_blocks)
    ours, theirs = block_mask_in_graph(*arguments), block_mask_for(*arguments)
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in ("kv", "q", "full_kv", "full_q"):
        for part in ("num_blocks", "indices"):
            mine, other = getattr(ours, f"{name}_{part}"), getattr(theirs, f"{name}_{part}")
            assert (mine is None) == (other is None)
            if mine is not None:
                assert mine.is_contiguous()
                assert torch.equal(mine, other)


# torch 2.14's own check reads the gradient of a view.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_operator_keeps_its_promises() -> None:
    mask = masks.SlidingWindow(torch.tensor([5, 200]))
    arguments = (
        list(mask.tensors().values()), mask.structure(), mask.integers(), 300, 300, 1, 2, True, torch.device("cpu")
    )  # fmt: skip
    torch.library.opcheck(torch.ops.attn_mods.block_lists.default, arguments)
    torch.library.opcheck(torch.ops.attn_mods.realised.default, (torch.randn(3, 4).T.requires_grad_(),))


@pytest.mark.parametrize("name", am.names(kind="mask") + am.names(kind="score"))
def test_structure_describes_every_entry(name: str) -> None:
    for case in registry.info(name).cases.values():
        q_len, kv_len = (case.lengths or ((45, 45),))[-1]
        part = case.make(q_len, kv_len, "cpu")
        copy = from_structure(part.structure(), list(part.tensors().values()), part.integers())
        assert type(copy) is type(part)
        assert copy.key() == part.key()


def test_structure_describes_compositions() -> None:
    mask = ~(masks.Causal() & masks.SlidingWindow(5)).shift(q=3) | masks.Document.from_lengths([3, 4])
    recipe = Recipe(mask, scores.Softcap(float("1e30")) >> scores.HeadBias(torch.zeros(2)), torch.zeros(2), scale=0.5)
    copy = from_structure(recipe.structure(), list(recipe.tensors().values()), recipe.integers())
    assert copy.key() == recipe.key()


def test_a_users_rule_cannot_be_described() -> None:
    with pytest.raises(TypeError, match="build its block_mask outside of the compiled function"):
        Mask.from_mask_mod(odd_rule).structure()


@pytest.mark.parametrize("part", ["q", "k and v"])
def test_views_made_in_the_graph_are_read_where_they_begin(part: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 200, 16)
    if part == "q":
        mask: Mask = masks.SlidingWindow(9)
        run = torch.compile(lambda: am.attention(q[:, :, -5:], k, v, mask, q_offset=195), fullgraph=True)
        expected = am.reference(q[:, :, -5:], k, v, mask, q_offset=195)
    else:
        mask = masks.KeyPadding(50)
        run = torch.compile(lambda: am.attention(q, k[:, :, 100:], v[:, :, 100:], mask), fullgraph=True)
        expected = am.reference(q, k[:, :, 100:], v[:, :, 100:], mask)
    with torch.no_grad():
        torch.testing.assert_close(run().double(), expected, atol=1e-5, rtol=0)


def test_the_module_compiles_as_a_whole() -> None:
    layer = am.nn.Attention(32, 2, recipe=Recipe(masks.SlidingWindow(9), sink=torch.tensor([0.3, 1.0]))).eval()
    x = torch.randn(2, 40, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_a_sink_that_is_an_input_of_the_graph() -> None:
    q, k, v = torch.randn(3, 1, 2, 60, 16)
    sink = torch.tensor([0.3, 1.0])
    run = torch.compile(lambda s: am.attention(q, k, v, Recipe(masks.SlidingWindow(9), sink=s)), fullgraph=True)
    with torch.no_grad():
        expected = am.reference(q, k, v, Recipe(masks.SlidingWindow(9), sink=sink))
        torch.testing.assert_close(run(sink).double(), expected, atol=1e-5, rtol=0)
