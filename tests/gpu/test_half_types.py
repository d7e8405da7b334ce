"""Backends in half types on a card: output, lse and gradients of what they claim, by the two-errors rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, backends, masks, registry, scores
from attn_mods.backend_checks import Problem, check_gradients, check_lse, check_output
from attn_mods.backends import Needs, Shapes
from attn_mods.backends.packages import installed
from attn_mods.score import ScoreMod, UserScore
from attn_mods.user_rule import UserRule

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # The packages that are tried warn of their own affairs when they are imported and when they compile.
    pytest.mark.filterwarnings("ignore"),
]

UNCOMPILED = [backend.name for backend in backends.ALL if not backend.name.startswith("flex")]
LENGTH = 300
CLAIMED = {
    "sdpa_cudnn": {"causal", "full"},
    "varlen": {"causal", "document", "document_causal", "sliding_window"},
    "nested": {"document", "document_causal"},
    "flash3": {"causal", "document", "document_causal"},
    "flash4": {"causal", "document", "document_causal", "sliding_window"},
}
"""What these must compute at least, where they are installed."""

TENSOR_CASE = "tensor"
"""The cases whose parameter is a tensor of no dimension, which the FLASH kernel of flex does not compile."""

PACKAGES = {"flash3": "fa3_fwd_interface", "flash4": "flash_attn.cute", "flex_flash": "flash_attn.cute"}


def skip_if_not_installed(backend: str) -> None:
    """Skip a test of a package that is not there."""
    package = PACKAGES.get(backend)
    if package is not None and not installed(package):
        pytest.skip(f"{package} is not installed")


def claims(backend: str, problem: Problem, needs: Needs) -> bool:
    """Whether the backend says that it computes this."""
    recipe = problem.recipe.sized(problem.q.shape[0], problem.q.shape[1])
    placed = recipe.place(problem.q.shape[2], problem.k.shape[2], problem.q_offset)
    shapes = Shapes.of(problem.q, problem.k, problem.v)
    return backends.get(backend).supports(placed, shapes, problem.q.dtype, problem.q.device, needs) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", UNCOMPILED)
def test_every_entry(backend: str, dtype: torch.dtype, record_property: Callable[[str, object], None]) -> None:
    skip_if_not_installed(backend)
    if backend == "flash3" and dtype == torch.float16:
        pytest.skip("this build of FlashAttention-3 has no float16")
    computed, rows = set(), []
    for name in am.names(kind="mask"):
        for case, made in registry.info(name).cases.items():
            q_len, kv_len = (made.lengths or ((LENGTH, LENGTH),))[0]
            problem = Problem.of(made.make(q_len, kv_len, "cuda"), q_len, kv_len, dtype, "cuda")
            where = f"{name} {case}"
            if claims(backend, problem, Needs()):
                computed.add(name)
                rows.append(check_output(where, backend, problem))
            if claims(backend, problem, Needs(lse=True)):
                rows.append(check_lse(where, backend, problem))
            if claims(backend, problem, Needs(input_gradients=True)):
                rows.append(check_gradients(where, backend, problem, parameters=False))
    assert computed >= CLAIMED.get(backend, set())
    assert not [row for row in rows if row.outcome != "ok"], [row for row in rows if row.outcome != "ok"]
    record_property(f"half types, {backend}", len(rows))


@pytest.mark.parametrize("backend", ["varlen", "flash3", "flash4"])
@pytest.mark.parametrize("lengths", [(1, 300), (40, 300), (300, 300), (300, 40)], ids=str)
@pytest.mark.parametrize("mask", [masks.Causal(), masks.SlidingWindow(50), masks.WindowSymmetric(20)], ids=str)
def test_aligned_as_the_recipe_is(mask: am.Mask, lengths: tuple[int, int], backend: str) -> None:
    skip_if_not_installed(backend)
    q_len, kv_len = lengths
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda", dtype=torch.bfloat16) for n in (q_len, kv_len, kv_len))
    problem = Problem(Recipe(mask), q, k, v, max(0, kv_len - q_len))
    lacks_window = backend == "flash3" and not isinstance(mask, masks.Causal)
    assert claims(backend, problem, Needs()) == (q_len <= kv_len and not lacks_window)
    if claims(backend, problem, Needs()):
        rows = [check(str(lengths), backend, problem) for check in (check_output, check_lse)]
        assert not [row for row in rows if row.outcome != "ok"], rows


@pytest.mark.parametrize("backend", ["varlen", "nested", "flash3", "flash4"])
def test_many_documents(backend: str) -> None:
    skip_if_not_installed(backend)
    lengths = [1, 0, 300, 17, 128, 0, 129]
    recipe = Recipe(masks.Document.from_lengths(lengths, "cuda") & masks.Causal())
    problem = Problem.of(recipe, sum(lengths), sum(lengths), torch.bfloat16, "cuda")
    rows = [check_output("documents", backend, problem)]
    if claims(backend, problem, Needs(lse=True)):
        rows.append(check_lse("documents", backend, problem))
    if claims(backend, problem, Needs(input_gradients=True)):
        rows.append(check_gradients("documents", backend, problem, parameters=False))
    assert not [row for row in rows if row.outcome != "ok"], rows
    assert len(rows) == {"varlen": 3, "nested": 2, "flash3": 2, "flash4": 3}[backend]


@pytest.mark.parametrize("backend", ["varlen", "flash3", "flash4"])
@pytest.mark.parametrize("mask", [masks.Causal(), masks.SlidingWindow(9)], ids=str)
def test_with_a_sink(mask: am.Mask, backend: str) -> None:
    skip_if_not_installed(backend)
    recipe = Recipe(mask, sink=torch.tensor([-2.0, 0.0, 2.0, -torch.inf], device="cuda"))
    problem = Problem.of(recipe, LENGTH, LENGTH, torch.bfloat16, "cuda")
    if not claims(backend, problem, Needs()):
        assert backend == "flash3" and not isinstance(mask, masks.Causal)
        return
    rows = [check_output("sink", backend, problem), check_lse("sink", backend, problem)]
    if backend == "flash4":
        finite = Recipe(mask, sink=torch.tensor([-2.0, 0.0, 2.0, 1.0], device="cuda"))
        learned = Problem.of(finite, LENGTH, LENGTH, torch.bfloat16, "cuda")
        rows.append(check_gradients("sink", backend, learned, parameters=True))
    assert not [row for row in rows if row.outcome != "ok"], rows


@pytest.mark.parametrize("backend", ["sdpa_cudnn", "sdpa_flash"])
@pytest.mark.parametrize("q_len", [1, 512])
def test_grouped_heads_are_not_repeated_in_memory(q_len: int, backend: str) -> None:
    kv_len = 512
    q = torch.randn(4, 32, q_len, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(4, 2, kv_len, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    problem = Problem(Recipe(masks.Causal()), q, k, v, kv_len - q_len)
    rows = [check_output("grouped", backend, problem), check_gradients("grouped", backend, problem, parameters=False)]
    assert not [row for row in rows if row.outcome != "ok"], rows
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        am.attention(q, k, v, problem.recipe, q_offset=problem.q_offset, backend=backend)
    repeated = 2 * 16 * k.numel() * k.element_size()
    assert torch.cuda.max_memory_allocated() - before < repeated


@pytest.mark.parametrize("backend", ["flash3", "flash4", "flex", "flex_flash"])
@pytest.mark.parametrize("cap", [5.0, 50.0])
@pytest.mark.parametrize("approximate", [False, True], ids=["exact", "approximate"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_softcap(dtype: torch.dtype, approximate: bool, cap: float, backend: str) -> None:
    skip_if_not_installed(backend)
    if backend == "flash3" and dtype == torch.float16:
        pytest.skip("this build of FlashAttention-3 has no float16")
    recipe = Recipe(masks.Causal(), scores.Softcap(cap, approximate))
    problem = Problem.of(recipe, LENGTH, LENGTH, dtype, "cuda")
    rows = [check_output("softcap", backend, problem), check_lse("softcap", backend, problem)]
    if backend != "flash3":
        rows.append(check_gradients("softcap", backend, problem, parameters=False))
    assert not [row for row in rows if row.outcome != "ok"], rows


def with_causal(problem: Problem) -> Problem:
    """The same under the causal mask."""
    return replace(problem, recipe=replace(problem.recipe, mask=masks.Causal()))


def with_as_many_key_heads(problem: Problem) -> Problem:
    """The same with a head of k and v for every query head."""
    k, v = (each.repeat_interleave(problem.q.shape[1] // each.shape[1], 1) for each in (problem.k, problem.v))
    return replace(problem, k=k, v=v)


@pytest.mark.parametrize("windows", [[4, 200, 30, 100], [1, 1, 64, 64]], ids=str)
def test_windows_per_head_of_grouped_heads_on_the_flash_kernel_of_flex(windows: list[int]) -> None:
    skip_if_not_installed("flex_flash")
    q = torch.randn(2, 4, LENGTH, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 2, LENGTH, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    problem = Problem(Recipe(masks.SlidingWindow(torch.tensor(windows, device="cuda"))), q, k, v, None)
    rows = [
        check_output("windows", "flex_flash", problem),
        check_lse("windows", "flex_flash", problem),
        check_gradients("windows", "flex_flash", problem, parameters=False),
    ]
    assert not [row for row in rows if row.outcome != "ok"], rows


def rules_over_negative_numbers() -> dict[str, UserRule | UserScore]:
    """Rules as users write them, in which what is negative means what it means in torch."""
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(2 * LENGTH, generator=generator).cuda()
    nearer = torch.randint(-LENGTH, LENGTH, (LENGTH,), generator=generator).cuda()

    return {
        "table": UserScore(lambda score, b, h, q_idx, kv_idx: score + table[kv_idx - q_idx]),
        "table by table": UserScore(lambda score, b, h, q_idx, kv_idx: score + table[nearer[kv_idx]]),
        "mask by table": UserRule(lambda b, h, q_idx, kv_idx: (table[kv_idx - q_idx] > 0.3) | (q_idx == kv_idx)),
        "remainder": UserRule(lambda b, h, q_idx, kv_idx: (kv_idx - q_idx) % 7 < 3),
        "quotient": UserRule(lambda b, h, q_idx, kv_idx: ((kv_idx - q_idx) // 40) % 2 == 0),
    }


@pytest.mark.parametrize("backend", ["flex", "flex_flash"])
@pytest.mark.parametrize("name", ["table", "table by table", "mask by table", "remainder", "quotient"])
def test_rules_over_negative_numbers(name: str, backend: str) -> None:
    skip_if_not_installed(backend)
    q, k, v = (torch.randn(1, 4, LENGTH, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    problem = Problem(Recipe.of(rules_over_negative_numbers()[name]), q, k, v, None)
    assert claims(backend, problem, Needs(input_gradients=True))
    rows = [check_output(name, backend, problem), check_gradients(name, backend, problem, parameters=False)]
    assert not [row for row in rows if row.outcome != "ok"], rows


@pytest.mark.parametrize("backend", ["flex", "flex_flash"])
def test_a_negative_index_of_a_table_whose_length_changes(backend: str) -> None:
    skip_if_not_installed(backend)
    for length in (300, 450, 512):  # the second compiles for any length
        q, k, v = (torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        problem = Problem(Recipe.of(UserScore(towards(torch.rand(2 * length, device="cuda")))), q, k, v, None)
        name = f"{length} tokens"
        rows = [check_output(name, backend, problem), check_gradients(name, backend, problem, parameters=False)]
        assert not [row for row in rows if row.outcome != "ok"], rows


def towards(table: Tensor) -> ScoreMod:
    """A bias by key less query, which is negative before the query."""
    return lambda score, b, h, q_idx, kv_idx: score + table[kv_idx - q_idx]


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in am.names(kind="mask") + am.names(kind="score") for case in registry.info(name).cases],
)
def test_every_entry_on_the_flash_kernel_of_flex(
    name: str, case: str, record_property: Callable[[str, object], None]
) -> None:
    skip_if_not_installed("flex_flash")
    made = registry.info(name).cases[case]
    q_len, kv_len = (made.lengths or ((LENGTH, LENGTH),))[0]
    problem = Problem.of(made.make(q_len, kv_len, "cuda"), q_len, kv_len, torch.bfloat16, "cuda")
    refused = not claims("flex_flash", problem, Needs(lse=True))
    assert refused == (case == TENSOR_CASE or q_len == 1)
    if refused:
        record_property("refused by the FLASH kernel of flex", 1)
        return
    rows = [check_output(case, "flex_flash", problem), check_lse(case, "flex_flash", problem)]
    trained = [problem]
    if problem.recipe.score is not None:
        if problem.q.shape[1] != problem.k.shape[1] and name != "softcap":
            assert not claims("flex_flash", problem, Needs(input_gradients=True))
            trained = [with_as_many_key_heads(problem)]
        trained.append(with_causal(trained[0]))
    rows += [check_gradients(case, "flex_flash", each, parameters=False) for each in trained]
    assert not [row for row in rows if row.outcome != "ok"], rows
    record_property("FLASH kernel of flex", len(rows))
