"""attention, explain and reference refuse the same calls in the same words, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attn_mods as am
from attn_mods import Recipe, Score, masks, scores
from attn_mods.backends import ALL
from attn_mods.mask import Mask
from tests.attention_inputs import inputs
from tests.refusals import assert_refused


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend may start on bad input, and no matrix of the reference."""

    def started(*arguments: object) -> None:
        raise AssertionError("something was computed")

    for backend in ALL:
        monkeypatch.setattr(backend, "run", started)
    monkeypatch.setattr("attn_mods.oracle.dense_scores", started)


Q, K, V = inputs(8)
FOUR = torch.zeros(4, device="meta")
SEEN = torch.ones(8, dtype=torch.bool, device="meta")


def by_a_global_name(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return SEEN[kv_idx]


MOVE = r'its tensors must be on cpu as q is, got meta; move it with \.to\("cpu"\), and what a function of yours refers'
HOLDS = "must be a dense tensor that holds values, got one"
NESTED = torch.nested.nested_tensor([torch.zeros(4, 8, 16)] * 2, layout=torch.jagged)

CALLS: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "bias elsewhere": ((Q, K, V, scores.HeadBias(FOUR)), ValueError, f"^head_bias: {MOVE}"),
    "sink elsewhere": ((Q, K, V, Recipe(sink=FOUR)), ValueError, f"^full and sink: {MOVE}"),
    "sink and bias in two places": (
        (Q, K, V, Recipe(score=scores.HeadBias(FOUR), sink=torch.zeros(4))),
        ValueError,
        r"^Recipe: all tensors must be on one device, got score\.bias on meta, sink on cpu; move it with",
    ),
    "table of a rule elsewhere": (
        (Q, K, V, Mask.from_mask_mod(by_a_global_name, name="users")),
        ValueError,
        f"^users: {MOVE}",
    ),
    "table of a score elsewhere": (
        (Q, K, V, Score.from_score_mod(lambda score, b, h, i, j: score + FOUR[h], name="users")),
        ValueError,
        f"^users: {MOVE}",
    ),
    "all on the meta device": ((Q.to("meta"), K.to("meta"), V.to("meta")), ValueError, f"^full: q {HOLDS} on the meta"),
    "v on the meta device": ((Q, K, V.to("meta")), ValueError, f"^full: v {HOLDS} on the meta device; pass a strided"),
    "sparse": ((Q, K.to_sparse(), V), ValueError, rf"^full: k {HOLDS} of layout torch\.sparse_coo"),
    "jagged": ((NESTED, K, V), ValueError, rf"^full: q {HOLDS} of layout nested"),
    "None": ((None, K, V), TypeError, "^full: q must be a tensor, got NoneType; convert it with torch.as_tensor"),
    "text": ((Q, "k", V), TypeError, "^full: k must be a tensor, got str"),
    "array": ((Q, K, np.zeros((2, 2, 8, 16))), TypeError, "^full: v must be a tensor, got ndarray"),
    "complex": ((Q.cfloat(), K.cfloat(), V.cfloat()), TypeError, "^full: q must be float16, .*, got torch.complex64"),
    "8 bits": (
        tuple(t.to(torch.float8_e4m3fn) for t in (Q, K, V)),
        TypeError,
        r"^full: q must be float16, bfloat16, float32 or float64, got torch\.float8_e4m3fn; convert it",
    ),
    "sink of other heads": (
        (Q, K, V, Recipe(masks.Causal(), sink=torch.zeros(3))),
        ValueError,
        "^causal and sink: its sink must have Hq = 4 as q has, or 1, got 3; give it 4, or one for all",
    ),
    "sink of the key heads": (
        (Q, K, V, Recipe(sink=torch.zeros(2))),
        ValueError,
        "^full and sink: its sink must have Hq = 4 as q has, or 1, got 2",
    ),
    "sink and window of other heads": (
        (Q, K, V, Recipe(masks.SlidingWindow(torch.tensor([1, 2, 3, 4])), sink=torch.zeros(3))),
        ValueError,
        "^sliding_window and sink: its sink must have Hq = 4 as q has, or 1, got 3",
    ),
    "window and bias of other heads": (
        (Q, K, V, Recipe(masks.SlidingWindow(torch.tensor([1, 2, 3, 4])), scores.HeadBias(torch.zeros(2)))),
        ValueError,
        "^sliding_window with head_bias: the H of its parts must be 1 or equal, got mask 4 and score 2; make",
    ),
    "recipe of numbers": ((Q, K, V, 3), TypeError, "the recipe must be a Recipe, Mask or Score, got 3; wrap a func"),
    "list of masks": ((Q, K, V, [masks.Causal()]), TypeError, r"Mask or Score, got \[Causal\(\)\]; wrap a function"),
    "name of an entry": ((Q, K, V, "causal"), TypeError, r"Mask or Score, got 'causal'; make one by name with attn"),
    "class of a mask": ((Q, K, V, masks.Causal), TypeError, r"Mask or Score, got <class .*; make one with Causal\("),
    "module": ((Q, K, V, masks), TypeError, "Mask or Score, got <module"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "function", [am.attention, am.explain, am.reference], ids=["attention", "explain", "reference"]
)
def test_bad_calls(function: Callable[..., object], name: str) -> None:
    arguments, error, message = CALLS[name]
    assert_refused(lambda: function(*arguments), error, message)


def test_autocast_looks_at_no_tensor_without_values() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_refused(lambda: am.attention(*(t.to("meta") for t in (Q, K, V))), ValueError, f"^full: q {HOLDS}")


def test_an_option_that_attention_does_not_have() -> None:
    message = "^explain: it takes the options of attention, got q_ofset; use some of q_offset, block_mask, return_lse"
    assert_refused(lambda: am.explain(Q, K, V, q_ofset=3), TypeError, message)  # type: ignore[call-arg]


@pytest.mark.parametrize("batch", [2, 3])
def test_sizes_that_a_compiler_holds_as_symbols_are_compared_by_value(batch: int) -> None:
    lengths = torch.tensor([3, 8])

    def sizes_fit(q: Tensor) -> Tensor:
        mask = Mask.from_mask_mod(lambda b, h, i, j: j < lengths[b], name="users").sized(q.shape[0], q.shape[1])
        am.call_checks.check_sizes(Recipe(mask), q)
        return q + 1

    torch._dynamo.reset()
    compiled = torch.compile(sizes_fit, fullgraph=True, dynamic=True, backend="eager")
    assert torch.equal(compiled(torch.zeros(batch, 4, 8, 16)), torch.ones(batch, 4, 8, 16))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "rule", "got"),
    [
        ([1], "kernel_options must be a dict", r"\[1\]"),
        ({3: 4}, "kernel_options must map names to values", "3: 4"),
        ({"BLOCK_M": [64]}, "BLOCK_M must be a whole number", r"'BLOCK_M': \[64\]"),
        ({"BLOCK_M": torch.ones(2)}, "BLOCK_M must be a whole number", "'BLOCK_M': a tensor"),
        ({"BLOCK_M": -64}, "BLOCK_M must be a whole number", "'BLOCK_M': -64"),
        ({"BLOCK_M": True}, "BLOCK_M must be a whole number", "'BLOCK_M': True"),
        ({"num_stages": None}, "num_stages must be a whole number", "'num_stages': None"),
        ({"fwd_BLOCK_M": 64.0}, "fwd_BLOCK_M must be a whole number", r"'fwd_BLOCK_M': 64\.0"),
        ({"PRESCALE_QK": "False"}, "PRESCALE_QK must be True or False", "'PRESCALE_QK': 'False'"),
        ({"PRESCALE_QK": 1}, "PRESCALE_QK must be True or False", "'PRESCALE_QK': 1"),
        ({"BACKEND": "flash"}, "BACKEND must be one of AUTO, TRITON, FLASH, TRITON_DECODE", "'BACKEND': 'flash'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [am.attention, am.explain], ids=["attention", "explain"])
def test_kernel_options_that_are_none(options: Any, rule: str, got: str, function: Any) -> None:
    with pytest.raises(TypeError, match=rf"causal: {rule}.*, got {got}.*; pass some of torch's FlexKernelOptions"):
        function(*inputs(8), masks.Causal(), kernel_options=options)


DOCUMENTED = "kernel_options must be options that torch documents"


@pytest.mark.parametrize(
    ("options", "rule", "remedy"),
    [
        ({"SM_SCALE": 0.5}, DOCUMENTED, "BLOCK_M"),
        ({"BLOCKM": 64}, DOCUMENTED, "BLOCK_M"),
        ({"fwd_bwd_BLOCK_M": 64}, DOCUMENTED, "BLOCK_M"),
        ({"bwd_IS_DIVISIBLE": True}, DOCUMENTED, "fwd_ or bwd_"),
        ({"fwd_BACKEND": "TRITON"}, DOCUMENTED, "all but BACKEND and FORCE_USE_FLEX_ATTENTION"),
        ({"BACKEND": "FLASH"}, "kernel_options must leave the backend as it is", "flex_flash"),
        ({"BACKEND": "TRITON", "FORCE_USE_FLEX_ATTENTION": True}, "BACKEND and FORCE_USE_.* exclude each other", "one"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function", [am.attention, am.explain], ids=["attention", "explain"])
def test_kernel_options_that_are_not_the_callers(options: Any, rule: str, remedy: str, function: Any) -> None:
    with pytest.raises(ValueError, match=rf"causal: {rule}, got .*{remedy}"):
        function(*inputs(8), masks.Causal(), kernel_options=options)
