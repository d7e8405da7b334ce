"""What is right passes, what is wrong by little does not."""

from __future__ import annotations

import pytest
import torch

import attn_mods as am
from benchmarks.attention import gate as gate_module
from benchmarks.attention.cases import Group, Shape
from benchmarks.attention.gate import DenseOnce, Gate, Verdict
from benchmarks.attention.ways import Way
from tests.benchmarks.attention.small import SMALL, Changed, NotFinite, OffByALittle, WrongGradients


def verdict(way: Way, training: bool) -> Verdict:
    gate = Gate(SMALL, "cpu")
    task = gate.task(training)
    return gate.check(way.prepared(task), task)


@pytest.mark.parametrize("training", [False, True])
def test_right(training: bool) -> None:
    found = verdict(Changed(), training)
    assert found.wrong is None
    described = found.described()
    assert 0 < described["out_error"] <= described["out_allowed"] < 1e-4
    assert ("gradients_error" in described) == training
    assert described["length"] == 64


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", [OffByALittle(), NotFinite()], ids=lambda way: type(way).__name__)
def test_wrong_output(way: Way, training: bool) -> None:
    found = verdict(way, training)
    assert found.wrong is not None and found.wrong.startswith("output: relative error")
    assert found.is_finite == isinstance(way, OffByALittle)


def test_wrong_gradients() -> None:
    assert verdict(WrongGradients(), False).wrong is None
    found = verdict(WrongGradients(), True)
    assert found.wrong is not None and found.wrong.startswith("gradients: relative error 5.0e-01")


def test_long_sequences_are_checked_on_shorter_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Gate(SMALL, "cpu").is_shortened
    monkeypatch.setitem(gate_module.LONGEST, "cpu", 32)
    gate = Gate(SMALL, "cpu")
    assert gate.is_shortened
    assert gate.task(False).q.shape == (1, 2, 32, 16)


def test_a_dense_mask_is_made_once_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = am.masks.SlidingWindow(5)
    once, expected = DenseOnce(mask, 12, 20), mask.shift(q=8).dense(4, 20)
    monkeypatch.setattr(type(mask), "dense", None)  # from here on it can be computed by nobody
    assert (once.name, once.frame, once.batch_and_heads()) == ("sliding_window", "self", (1, 1))
    assert torch.equal(once.shift(q=8).dense(4, 20), expected)
    with pytest.raises(ValueError, match="made for 12 x 20, asked for 13 x 20"):
        once.shift(q=8).dense(5, 20)


@pytest.mark.parametrize("shape", [(64, 64), (1, 64), (5, 64)], ids=str)
def test_truth_of_queries_at_the_end(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MOST_PAIRS", 3 * 2 * 64)
    q_len, kv_len = shape
    group = Group("sliding_window", "bench", Shape(1, 2, 2, q_len, kv_len, 16, "float32"))
    gate = Gate(group, "cpu")
    q, k, v = gate.inputs
    expected = am.reference(q, k, v, group.recipe("cpu"), q_offset=kv_len - q_len)
    torch.testing.assert_close(gate._expected["out"], expected)


def test_truth_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Gate(SMALL, "cpu")
    monkeypatch.setattr(gate_module, "MOST_PAIRS", 7 * 2 * 64)
    parts = Gate(SMALL, "cpu")
    assert parts._expected.keys() == whole._expected.keys() == {"out", "q", "k", "v"}
    for name, expected in whole._expected.items():
        torch.testing.assert_close(parts._expected[name], expected, atol=1e-12, rtol=1e-12)
