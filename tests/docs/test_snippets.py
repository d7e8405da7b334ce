"""Every program on a generated page runs and computes what the recipe says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import attn_mods as am
from docs.generator.examples import catalogue

NAMES = [entry.name for entry in catalogue()]


def programs(page: str) -> dict[str, str]:
    """Title of the tab to program."""
    found = re.findall(r'^=== "(.+?)"\n\n    ```python\n(.*?)^    ```', page, re.DOTALL | re.MULTILINE)
    return {title: re.sub(r"^ {4}", "", body, flags=re.MULTILINE) for title, body in found}


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """What flash-attn's documentation says of its arguments, for as many queries as keys: [batch, tokens, heads, D]."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * (i - j).abs()
    left, right = window_size
    right = 0 if causal else right
    visible = ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)


def flash_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int, **options: Any
) -> Tensor:
    """The same in each document of packed tokens [tokens, heads, D]."""
    assert torch.equal(cu_q, cu_k) and cu_q.dtype == torch.int32 and longest_q == longest_k == int(cu_q.diff().max())
    bounds = list(zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), strict=True))
    return torch.cat([flash_attention(*(t[None, a:b] for t in (q, k, v)), **options)[0] for a, b in bounds])


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn by its documentation, and flex_attention as it is without a compiler."""
    module = ModuleType("flash_attn")
    module.__dict__.update(flash_attn_func=flash_attention, flash_attn_varlen_func=flash_varlen)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(sys.modules["torch.nn.attention.flex_attention"], "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", NAMES)
def test_programs_run_and_agree_with_float64(
    pages: dict[str, str], name: str, stand_ins: None, record_property: Callable[[str, object], None]
) -> None:
    found = programs(pages[f"{name}.md"])
    assert {"One call", "flex_attention"} <= found.keys()
    for title, program in found.items():
        namespace: dict[str, Any] = {}
        # What auto chooses is compiled for seconds each; other tests hold it against float64 for every entry.
        program = program.replace("am.attention(q, k, v, ", 'am.attention(q, k, v, backend="eager", recipe=')
        program = program.replace(', device="cuda", dtype=torch.bfloat16', "")
        exec(compile(program, f"<{title} of {name}>", "exec"), namespace)
        part = namespace.get("recipe", namespace.get("mask", namespace.get("score")))
        truth = am.reference(namespace["q"], namespace["k"], namespace["v"], part)
        assert torch.allclose(namespace["out"].double(), truth, atol=2e-5, rtol=2e-5), title
    record_property("programs of the gallery run", len(found))


def test_fixed_function_kernels_are_shown_where_there_are_any(pages: dict[str, str]) -> None:
    shown = {name for name in NAMES if "flash-attn" in programs(pages[f"{name}.md"])}
    assert {"full", "causal", "sliding_window", "window_asymmetric", "document_causal", "softcap", "alibi"} <= shown
    assert "prefix_lm" not in shown
