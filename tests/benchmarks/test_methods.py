"""The methods: each builds the mask it says, of fresh values, and says why it cannot."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from attn_mods import Mask
from attn_mods.backends import block_mask_cache
from attn_mods.masks import Causal
from benchmarks import methods
from benchmarks.gate import GATE_SEED, Gate
from benchmarks.measured_masks import MASKS
from benchmarks.methods import METHODS

LENGTH = 512
ON_A_CARD = {"torch_compiled", "torch_compiled_cold"}
COMPACT = {name for name in METHODS if name.endswith(("_compact", "_full"))}


@pytest.fixture(autouse=True)
def attention_gym_is_looked_for_again() -> None:
    methods._causal_of_attention_gym.cache_clear()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", sorted(set(METHODS) - ON_A_CARD - COMPACT))
def test_methods_build_the_mask_or_say_why_not(method: str, mask: str) -> None:
    reason = METHODS[method].refuse(mask, "cpu")
    if reason is not None:
        assert (method, mask) == ("attn_mods", "dilated_blocks_and_global_tokens") or method == "attention_gym"
        assert reason in ("no entry has this rule", "attention-gym has a fast builder for causal masks only")
        return
    built = METHODS[method].prepare(mask, LENGTH, GATE_SEED, "cpu")()
    assert Gate("cpu").check(mask, built) == (None, "lists equal eager torch")


@pytest.mark.parametrize("method", sorted(ON_A_CARD))
def test_compiled_torch_is_measured_on_a_card(method: str) -> None:
    assert "on a card" in str(METHODS[method].refuse("causal", "cpu"))
    assert METHODS[method].refuse("causal", "cuda") is None


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'attn_gym'"), AttributeError("too old a torch")]
)
def test_an_attention_gym_that_cannot_be_imported_is_a_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> None:
        raise error

    monkeypatch.setattr(methods, "importlib", types.SimpleNamespace(import_module=import_module))
    told = f"attn_gym cannot be imported: {type(error).__name__}: {error}"
    assert METHODS["attention_gym"].refuse("causal", "cpu") == told


def with_compact(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A block_mask that takes the option and notes what it got."""
    seen: list[Any] = []
    plain = Mask.block_mask

    def block_mask(self: Mask, q_len: int, *, compact: bool | None = None, **options: Any) -> Any:
        seen.append(compact)
        return plain(self, q_len, **{name: value for name, value in options.items() if name != "compact"})

    monkeypatch.setattr(Mask, "block_mask", block_mask)
    return seen


@pytest.mark.parametrize("method", sorted(COMPACT))
def test_how_wide_lists_are_stored_is_asked_for(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_compact(monkeypatch)
    assert METHODS[method].refuse("sliding_window", "cpu") is None
    METHODS[method].prepare("sliding_window", LENGTH, GATE_SEED, "cpu")()
    assert seen == [method.endswith("_compact")]


@pytest.mark.parametrize("method", sorted(COMPACT))
def test_without_compact_lists_there_is_a_reason(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def block_mask(self: Mask, q_len: int) -> None:
        """As it was without the option."""

    monkeypatch.setattr(Mask, "block_mask", block_mask)
    assert METHODS[method].refuse("sliding_window", "cpu") == "this attn_mods has no compact lists"


@pytest.mark.parametrize("method", sorted(COMPACT))
def test_compact_lists_are_measured_at_length_alone(method: str) -> None:
    assert [METHODS[method].lengths(length) for length in (131_072, 524_288, 1_048_576)] == [False, True, True]


def test_block_masks_are_forgotten() -> None:
    device = torch.device("cpu")
    kept = block_mask_cache.block_mask_for(Causal(), 128, 128, device)
    assert len(block_mask_cache.BLOCK_MASKS)
    methods.forget_block_masks()
    assert not len(block_mask_cache.BLOCK_MASKS)
    assert block_mask_cache.block_mask_for(Causal(), 128, 128, device) is not kept
