"""What is right passes, what is wrong by little does not."""

from __future__ import annotations

import pytest
import torch

from benchmarks.attention import gate as gate_module
from benchmarks.attention.gate import Gate, Verdict
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


def test_truth_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Gate(SMALL, "cpu")
    monkeypatch.setattr(gate_module, "MOST_PAIRS", 7 * 2 * 64)
    parts = Gate(SMALL, "cpu")
    assert parts._expected.keys() == whole._expected.keys() == {"out", "q", "k", "v"}
    for name, expected in whole._expected.items():
        torch.testing.assert_close(parts._expected[name], expected, atol=1e-12, rtol=1e-12)
