"""What is made in the background: begun when it is told to, made once, and done without where it fails."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Iterator
from typing import NoReturn
from unittest import mock

import pytest
import torch
from torch import Tensor

from attn_mods import block_mask
from attn_mods.fused import available, compiled, planes
from attn_mods.fused import kernels as kernels_of_the_package
from attn_mods.fused.compiled import Background, functions_of, located, pointer
from attn_mods.fused.form import DTYPES
from attn_mods.tiles import Grid
from tests.fused.comparison import assert_same_lists, lists_by_calculus

CPU = torch.device("cpu")


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    if made._executor is not None:
        made._executor.shutdown()


def fail() -> NoReturn:
    raise AssertionError("made without being told to")


def test_nothing_is_begun_before_start(background: Background) -> None:
    assert background.get("key", fail, "a rule") is None
    assert background.get("key", fail, "a rule") is None
    assert background._executor is None
    assert len(background._waiting) == 1


def test_what_is_made_is_made_once_and_kept(background: Background) -> None:
    calls: list[str] = []

    def make() -> str:
        calls.append(threading.current_thread().name)
        return "kernel"

    for _ in range(3):
        assert background.get("key", make, "a rule") is None
    background.finish()
    for _ in range(3):
        assert background.get("key", fail, "a rule") == "kernel"
    background.finish()
    assert len(calls) == 1
    assert calls[0] != threading.current_thread().name


def test_keys_are_told_apart(background: Background) -> None:
    for key in (("form", 1), ("form", 2)):
        assert background.get(key, lambda key=key: key[1], "a rule") is None
    background.finish()
    assert [background.get(("form", n), fail, "a rule") for n in (1, 2)] == [1, 2]


def test_start_does_not_wait_and_finish_does(background: Background) -> None:
    """While it is being made there is nothing, and nobody waits but who asks to."""
    release, order = threading.Event(), []

    def make() -> str:
        assert release.wait(60)
        order.append("made")
        return "kernel"

    assert background.get("key", make, "a rule") is None
    background.start()
    assert background.get("key", fail, "a rule") is None
    assert order == []
    release.set()
    background.finish()
    order.append("finished")
    assert order == ["made", "finished"]
    assert background.get("key", fail, "a rule") == "kernel"


def test_what_is_asked_for_later_is_made_too(background: Background) -> None:
    background.get("first", lambda: 1, "a rule")
    background.finish()
    background.get("second", lambda: 2, "a rule")
    assert background.get("second", fail, "a rule") is None
    background.finish()
    assert background.get("first", fail, "a rule") == 1
    assert background.get("second", fail, "a rule") == 2


def test_what_fails_is_said_once_and_done_without(background: Background) -> None:
    calls: list[int] = []

    def make() -> NoReturn:
        calls.append(1)
        raise ValueError("no such register")

    background.get("key", make, "my rule")
    told = r"^my rule: its kernel could not be compiled \(ValueError: no such register\); BlockMasks are exact"
    with pytest.warns(RuntimeWarning, match=told) as warned:
        background.finish()
    assert len(warned) == 1
    assert background.get("key", fail, "my rule") is None
    background.finish()
    assert len(calls) == 1


def test_a_failure_where_warnings_are_errors_is_waited_for(background: Background) -> None:
    background.get("key", fail, "my rule")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        background.finish()
    assert background.get("key", fail, "my rule") is None


def test_threads_that_ask_at_once_get_one(background: Background) -> None:
    barrier, calls = threading.Barrier(4), []

    def ask() -> None:
        barrier.wait(60)
        background.get("key", lambda: calls.append(1), "a rule")
        background.start()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    background.finish()
    assert len(calls) == 1


def test_the_first_made_are_forgotten(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_MADE", 2)
    for key in "abc":
        background.get(key, lambda key=key: key, "a rule")
        background.finish()
    assert [background.get(key, fail, "a rule") for key in "bc"] == ["b", "c"]
    assert background.get("a", lambda: "again", "a rule") is None
    background.finish()
    assert background.get("a", fail, "a rule") == "again"


def window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (q_idx - kv_idx < 17) & (q_idx >= kv_idx)


@pytest.mark.usefixtures("interpreter")
def test_lists_of_a_rule_whose_kernel_fails_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background()
    monkeypatch.setattr(planes, "kernels", background)
    monkeypatch.setattr(block_mask, "kernels", background)
    monkeypatch.setattr(planes, "source_of", mock.Mock(side_effect=ValueError("no such register")))
    grid = Grid(45, 45, (16, 16))
    expected = lists_by_calculus(window, grid)
    with pytest.warns(RuntimeWarning, match=r"^window: its kernel could not be compiled"):
        first = block_mask.build_block_mask(window, grid)
        background.finish()
    second = block_mask.build_block_mask(window, grid)
    for built in (first, second):
        assert_same_lists(block_mask.lists_of(built), expected, "window")


def test_there_are_no_kernels_on_a_cpu_or_without_triton() -> None:
    assert not available(CPU)
    assert not available(torch.device("meta"))


@pytest.mark.usefixtures("interpreter")
def test_there_are_kernels_on_a_cpu_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available(CPU)
    assert not available(torch.device("meta"))
    monkeypatch.setattr(compiled, "_interpreter_installed", lambda: False)
    assert not available(CPU)


def test_devices_and_dtypes() -> None:
    assert located("cpu") == CPU
    assert located(torch.device("cuda", 3)) == torch.device("cuda", 3)
    assert len({pointer(dtype) for dtype in DTYPES}) == len(DTYPES) - 1
    assert pointer(torch.bool) == pointer(torch.uint8) == "*u8"


def test_generated_functions_find_their_names_and_their_source() -> None:
    made = functions_of("def twice(x):\n    return 2 * x\n", "<twice>")["twice"]
    assert made(4) == 8
    assert made.__module__ == "<twice>"
    assert "return 2 * x" in inspect.getsource(made)


def test_the_package_has_one_background() -> None:
    assert kernels_of_the_package is planes.kernels is compiled.kernels
