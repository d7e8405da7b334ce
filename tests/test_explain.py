"""explain(): one row a backend, as data and as a table."""

from __future__ import annotations

import inspect

import pytest
import torch
from rich.console import Console

import attn_mods as am
from attn_mods import Recipe, masks, scores
from attn_mods.backends import Reason
from attn_mods.dispatch import CallOptions
from tests.attention_inputs import inputs

NAMES = [
    "flex",
    "flex_flash",
    "sdpa_cudnn",
    "sdpa_flash",
    "sdpa_efficient",
    "sdpa_math",
    "varlen",
    "nested",
    "flash3",
    "flash4",
    "eager",
]
RUN_ON_A_CPU = {"flex", "sdpa_flash", "sdpa_math", "eager"}


def test_one_row_a_backend() -> None:
    explanation = am.explain(*inputs(8), masks.SlidingWindow(3))
    assert [row.backend for row in explanation.rows] == NAMES
    assert {row.backend for row in explanation.rows if row.runs} == RUN_ON_A_CPU
    assert [row.backend for row in explanation.rows if row.chosen] == ["flex"]
    assert {row.measured for row in explanation.rows} == {"not measured"}
    assert all((row.reason is None) == row.runs for row in explanation.rows)


@pytest.mark.parametrize(
    ("recipe", "trains", "return_lse", "chosen"),
    [
        (None, False, False, "sdpa_flash"),
        (masks.Causal(), False, False, "sdpa_flash"),
        (masks.Causal(), True, False, "sdpa_flash"),
        (masks.SlidingWindow(3), False, False, "flex"),
        (masks.SlidingWindow(3), True, False, "eager"),
        (masks.SlidingWindow(3), False, True, "eager"),
        (Recipe(sink=torch.zeros(4)), False, False, "flex"),
        (Recipe(sink=torch.zeros(4)), True, False, "eager"),
        (scores.Softcap(2.0), False, False, "flex"),
        (scores.HeadBias(torch.nn.Parameter(torch.zeros(4))), False, False, "eager"),
    ],
)
def test_choice_on_a_cpu(recipe: object, trains: bool, return_lse: bool, chosen: str) -> None:
    q, k, v = inputs(8)
    explanation = am.explain(q.requires_grad_(trains), k, v, recipe, return_lse=return_lse)  # type: ignore[arg-type]
    assert explanation.chosen == chosen


def test_explanation_is_what_attention_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for backend in am.backends.ALL:
        monkeypatch.setattr(backend, "run", lambda call, name=backend.name: (ran.append(name), None))
    for recipe in (None, masks.Causal(), masks.SlidingWindow(3), Recipe(sink=torch.zeros(4))):
        for trains in (False, True):
            q, k, v = inputs(8)
            am.attention(q.requires_grad_(trains), k, v, recipe)
            assert ran[-1] == am.explain(q, k, v, recipe).chosen


@pytest.mark.parametrize("mendable", [True, False])
def test_a_reason_the_caller_can_lift_stops_both(monkeypatch: pytest.MonkeyPatch, mendable: bool) -> None:
    reason = Reason("pass it in", mendable=mendable)
    monkeypatch.setattr(am.backends.get("flex"), "limits", lambda *arguments: reason)
    chosen = am.explain(*inputs(8), masks.SlidingWindow(3)).chosen
    assert chosen == (None if mendable else "eager")
    if mendable:
        with pytest.raises(ValueError, match="flex: pass it in"):
            am.attention(*inputs(8), masks.SlidingWindow(3))
    else:
        am.attention(*inputs(8), masks.SlidingWindow(3))


def test_takes_the_arguments_of_attention() -> None:
    ours = inspect.signature(am.attention).parameters
    own = {name for name in inspect.signature(am.explain).parameters if name != "options"}
    assert set(ours) == own | set(CallOptions.__annotations__)


def test_prints_a_table_that_says_how_it_chose() -> None:
    q, k, v = inputs(8)
    text = str(am.explain(q.requires_grad_(), k, v, masks.SlidingWindow(3)))
    assert "sliding_window on cpu" in text
    assert "training there goes through eager" in text
    assert "a fixed order decides" in text
    assert "not measured" in text
    line = next(line for line in text.splitlines() if line.startswith("│ eager"))
    assert "chosen" in line


def test_prints_through_rich() -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(am.explain(*inputs(8), masks.Causal()))
    assert "sdpa_efficient" in capture.get()


def test_a_named_backend() -> None:
    explanation = am.explain(*inputs(8), masks.Causal(), backend="eager")
    assert explanation.chosen == "eager"
    assert "asked for: eager" in str(explanation)
    nothing = am.explain(*inputs(8), masks.Causal(), backend="sdpa_cudnn")
    assert nothing.chosen is None
    with pytest.raises(ValueError, match=r"see attn_mods\.explain"):
        am.attention(*inputs(8), masks.Causal(), backend="sdpa_cudnn")
