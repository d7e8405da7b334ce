"""The ways to build a BlockMask that are compared. What a method prepares is not timed; what it then calls is."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import Mask, create_block_mask
from attn_mods.backends import block_mask_cache
from attn_mods.fused.compiled import kernels
from benchmarks.gate import BLOCK_SIZE
from benchmarks.measured_masks import MASKS
from benchmarks.new_rules import in_new_text

Call = Callable[[], BlockMask]
Refuse = Callable[[str, str], str | None]
Lengths = Callable[[int], bool]
COMPACT_FROM = 524_288
"""Lengths at which full and compact lists are measured apart."""

FIRST_AT = (32_768, 131_072)
"""Lengths at which the first mask of a new rule is measured: each needs a rule that nobody has seen."""


def _never(mask: str, device: str) -> None:
    return None


def _any(length: int) -> bool:
    return True


@dataclass(frozen=True)
class Method:
    """One way.

    Attributes:
        prepare: The call to be timed, from (mask, length, seed, device); its parameters are on the device already.
        refuse: Why it cannot build that mask on that device, or None.
        lengths: Whether the length is one of those it is measured at.
        once: Whether one call is all there is to measure: a first call is first once.
        compiles: Whether the first calls compile, or have compiled behind them, what later calls use.
        takes_seconds: Whether a cell compiles for seconds, and so is left to the end of a run.
        first: The method that is its first call; where that was given up, this would compile as long.
    """

    prepare: Callable[[str, int, int, str], Call]
    refuse: Refuse = _never
    lengths: Lengths = _any
    once: bool = False
    compiles: bool = False
    takes_seconds: bool = False
    first: str | None = None


def forget_block_masks() -> None:
    """Empty the package's cache of BlockMasks."""
    block_mask_cache.BLOCK_MASKS.clear()


def settle() -> None:
    """Wait for the kernels that the package compiles in the background, which would take part of the processor."""
    kernels.finish()


def torch_eager(mask: str, length: int, seed: int, device: str) -> Call:
    """torch's function as it is."""
    rule, batch = MASKS[mask].fresh_closure(length, seed, device), MASKS[mask].batch
    return lambda: flex_attention.create_block_mask(rule, batch, None, length, length, device, BLOCK_SIZE)


def torch_compiled(mask: str, length: int, seed: int, device: str) -> Call:
    """torch's function compiled for this mask and length; it compiles if the cold call did not come just before."""
    rule, batch = MASKS[mask].closure_of_tensors(length, seed, device), MASKS[mask].batch
    build = _compiled(mask, length)
    return lambda: build(rule, batch, None, length, length, device, BLOCK_SIZE)


def torch_compiled_cold(mask: str, length: int, seed: int, device: str) -> Call:
    """The first call of the compiled function, with nothing on disk to be found."""
    from torch._inductor.utils import fresh_cache  # imports the whole compiler

    _compiled.cache_clear()
    call = torch_compiled(mask, length, seed, device)

    def compile_and_call() -> BlockMask:
        with fresh_cache():
            return call()

    return compile_and_call


@functools.lru_cache(maxsize=1)
def _compiled(mask: str, length: int) -> Callable[..., BlockMask]:
    """Nothing that was compiled for another mask or length is left, so that sizes do not become symbols."""
    torch._dynamo.reset()
    compiled: Callable[..., BlockMask] = torch.compile(flex_attention.create_block_mask)
    return compiled


def attention_gym(mask: str, length: int, seed: int, device: str) -> Call:
    """attention-gym's builder of causal masks."""
    build: Callable[..., BlockMask] = _causal_of_attention_gym()
    return lambda: build(None, None, length, length, torch.device(device), BLOCK_SIZE)


@functools.cache
def _causal_of_attention_gym() -> Any:
    return importlib.import_module("attn_gym.masks.causal").create_causal_block_mask_fast


def entry(mask: str, length: int, seed: int, device: str, **options: Any) -> Call:
    """The entry; it is made before, as the closure is, so that the check of its parameters is not counted."""
    make = MASKS[mask].entry
    if make is None:
        raise ValueError(f"{mask}: no entry has this rule; measure its closure")
    made = make(**MASKS[mask].parameters(length, seed, device))
    return lambda: made.block_mask(length, device=device, block_size=BLOCK_SIZE, **options)


def closure(mask: str, length: int, seed: int, device: str) -> Call:
    """The closure, handed to the function of torch's signature."""
    rule, batch = MASKS[mask].fresh_closure(length, seed, device), MASKS[mask].batch
    return lambda: create_block_mask(rule, batch, None, length, length, device, BLOCK_SIZE)


def closure_as_mask(mask: str, length: int, seed: int, device: str, **options: Any) -> Call:
    """The closure as a mask, which takes more options."""
    rule, batch = MASKS[mask].fresh_closure(length, seed, device), MASKS[mask].batch
    return lambda: Mask.from_mask_mod(rule, B=batch, H=1).block_mask(
        length, device=device, block_size=BLOCK_SIZE, **options
    )


def first(mask: str, length: int, seed: int, device: str) -> Call:
    """A closure whose text and operations are new to the process."""
    rule, batch = in_new_text(MASKS[mask].fresh_closure(length, seed, device)), MASKS[mask].batch
    return lambda: create_block_mask(rule, batch, None, length, length, device, BLOCK_SIZE)


def _needs_card(mask: str, device: str) -> str | None:
    return None if device == "cuda" else "is measured on a card only; this run is on the CPU"


def _needs_attention_gym(mask: str, device: str) -> str | None:
    if mask != "causal":
        return "attention-gym has a fast builder for causal masks only"
    try:
        _causal_of_attention_gym()
    except Exception as error:  # what it imports of its own may be missing or too old, too
        return f"attn_gym cannot be imported: {type(error).__name__}: {error}"
    return None


def _needs_entry(mask: str, device: str) -> str | None:
    return "no entry has this rule" if MASKS[mask].entry is None else None


def _needs_compact(mask: str, device: str) -> str | None:
    if "compact" not in inspect.signature(Mask.block_mask).parameters:
        return "this attn_mods has no compact lists"
    return None


def _needs_entry_and_compact(mask: str, device: str) -> str | None:
    return _needs_entry(mask, device) or _needs_compact(mask, device)


def _long(length: int) -> bool:
    return length >= COMPACT_FROM


def _of_the_package(prepare: Callable[..., Call], refuse: Refuse = _never, lengths: Lengths = _any) -> Method:
    return Method(prepare, refuse, lengths, compiles=True)


METHODS: dict[str, Method] = {
    "attn_mods": _of_the_package(entry, _needs_entry),
    "attn_mods_closure": _of_the_package(closure),
    "attn_mods_compact": _of_the_package(functools.partial(entry, compact=True), _needs_entry_and_compact, _long),
    "attn_mods_full": _of_the_package(functools.partial(entry, compact=False), _needs_entry_and_compact, _long),
    "attn_mods_closure_compact": _of_the_package(
        functools.partial(closure_as_mask, compact=True), _needs_compact, _long
    ),
    "attn_mods_closure_full": _of_the_package(functools.partial(closure_as_mask, compact=False), _needs_compact, _long),
    "attention_gym": Method(attention_gym, _needs_attention_gym),
    "torch_eager": Method(torch_eager),
    "attn_mods_first": Method(first, lengths=FIRST_AT.__contains__, takes_seconds=True),
    "torch_compiled_cold": Method(torch_compiled_cold, _needs_card, once=True, takes_seconds=True),
    "torch_compiled": Method(
        torch_compiled, _needs_card, compiles=True, takes_seconds=True, first="torch_compiled_cold"
    ),
}
