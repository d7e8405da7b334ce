"""What the code at hand refuses of what was measured elsewhere."""

from __future__ import annotations

from unittest import mock

from attn_mods import backends
from attn_mods.backends import Reason
from benchmarks.attention.cases import Group, Shape
from benchmarks.attention.refusals import refusals

HALF = Shape(1, 4, 4, 256, 256, 64, "bfloat16")


BY_ARGUMENTS = {"flash3", "flash4", "varlen", "sdpa_flash"}
"""Backends whose kernels have arguments for some masks and take no others."""


def test_a_reason_for_each_backend_that_does_not_compute_it() -> None:
    found = refusals(Group("prefix_lm", "bench", HALF), "cuda", False)
    assert set(found) >= BY_ARGUMENTS and not {"flex", "eager"} & set(found)
    assert "prefix_lm" in found["varlen"]
    assert not BY_ARGUMENTS & set(refusals(Group("causal", "bench", HALF), "cuda", False))


def test_gradients_are_asked_for_too() -> None:
    asked = Group("causal", "bench", HALF)
    assert "flash3" in refusals(asked, "cuda", True)
    assert "flash3" not in refusals(asked, "cuda", False)


def test_a_kernel_option_that_gives_another_output() -> None:
    prescaled = frozenset({"fwd_PRESCALE_QK"})
    assert "PRESCALE_QK" in refusals(Group("alibi", "bench", HALF), "cuda", False, prescaled)["flex"]
    assert "flex" not in refusals(Group("causal", "bench", HALF), "cuda", False, prescaled)


def test_a_missing_package_is_no_reason() -> None:
    refusals.cache_clear()
    with mock.patch.object(type(backends.ALL[0]), "supports", lambda *asked: Reason("not here", package="some")):
        assert backends.ALL[0].name not in refusals(Group("causal", "bench", HALF), "cuda", False)
    refusals.cache_clear()
