"""New rules: no two alike, each the mask it was made of."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from attn_mods.evaluation import evaluate_everywhere
from benchmarks import new_rules
from benchmarks.measured_masks import MASKS
from benchmarks.new_rules import CLAUSES, in_new_text

POSITION = torch.arange(300)
NUMBERS = (2, 3, 7, 1000)


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("number", NUMBERS)
def test_every_clause_holds_everywhere(clause: str, number: int) -> None:
    text = clause.format(number=number)
    held = eval(text, {"q_idx": POSITION[:, None], "kv_idx": POSITION})
    assert bool(held.all()), text


def test_the_mask_stays_the_same() -> None:
    rule = MASKS["sliding_window"].fresh_closure(300, 0, "cpu")
    single = torch.zeros(1, dtype=torch.int64)
    old, new = (evaluate_everywhere(each, single, single, POSITION, POSITION) for each in (rule, in_new_text(rule)))
    assert torch.equal(old, new)
    assert old.any() and not old.all()


def test_no_two_have_the_same_text_or_operations() -> None:
    rule = MASKS["causal"].fresh_closure(300, 0, "cpu")
    texts = [inspect.getsource(in_new_text(rule)) for _ in range(30)]  # type: ignore[arg-type]
    assert len(set(texts)) == len({re.sub(r"\d+", "n", text) for text in texts}) == 30


def test_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_rules, "_orders", iter(()))
    with pytest.raises(RuntimeError, match="start another process"):
        in_new_text(MASKS["causal"].fresh_closure(300, 0, "cpu"))
