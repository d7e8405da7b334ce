"""A plan: flex_attention compiled for one structure of a recipe on one kind of input.

torch counts recompilations per code object and, past its limit, stops: so every plan runs a code object of its own, and
the limit counts the lengths of that plan only. The limit itself is never changed.
"""

from __future__ import annotations

import itertools
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

MOST_PLANS = 128

FlexCall = Callable[..., tuple[Tensor, Tensor | None]]

_plans: OrderedDict[Hashable, Plan] = OrderedDict()
_numbers = itertools.count()
_lock = threading.Lock()


def call_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Callable[..., Tensor] | None,
    block_mask: BlockMask | None,
    scale: float | None,
    return_lse: bool,
    kernel_options: dict[str, Any] | None,
) -> tuple[Tensor, Tensor | None]:
    """flex_attention as every plan, and a user's own compiled function, calls it."""
    options: Any = kernel_options
    if not return_lse:
        return flex_attention(q, k, v, score_mod, block_mask, scale, True, kernel_options=options), None
    out, aux = flex_attention(
        q, k, v, score_mod, block_mask, scale, True, kernel_options=options, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse


class Plan:
    """A compiled ``call_flex``.

    Attributes:
        first_lengths: q_len and kv_len of its first call: constants of the kernel compiled then, and of no later one.
    """

    def __init__(self, mode: str | None, first_lengths: tuple[int, int]) -> None:
        self.first_lengths = first_lengths
        self._compiled = torch.compile(_own_code_object(f"flex_plan_{next(_numbers)}"), fullgraph=True, mode=mode)

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        """``call_flex`` of these arguments."""
        return self._compiled(*arguments)


def plan_for(key: Hashable, mode: str | None, lengths: tuple[int, int]) -> Plan:
    """The plan of this key, compiled at its first call; ``lengths`` are q_len and kv_len of the call to come."""
    with _lock:
        if key in _plans:
            _plans.move_to_end(key)
            return _plans[key]
        plan = _plans[key] = Plan(mode, lengths)
        crowded = len(_plans) > MOST_PLANS
        if crowded:
            _plans.popitem(last=False)
    if crowded:
        warnings.warn(
            f"attn_mods: more than {MOST_PLANS} differently compiled recipes are in use, so some compile again; "
            "make rules of one structure and put what changes into tensors or ints",
            RuntimeWarning,
            stacklevel=2,
        )
    return plan


def run_plan(name: str, plan: Plan, *arguments: Any) -> tuple[Tensor, Tensor | None]:
    """Call a plan.

    Raises:
        RuntimeError: torch's recompile limit is reached. Nothing slower is run instead.
    """
    try:
        return plan(*arguments)
    except FailOnRecompileLimitHit as error:
        raise RuntimeError(
            f"{name}: flex_attention was compiled anew for as many sizes or values as torch allows "
            "(torch._dynamo.config.recompile_limit); pad the lengths to a few sizes, hold what changes in tensors, or "
            "raise the limit"
        ) from error


def _own_code_object(name: str) -> FlexCall:
    code = call_flex.__code__.replace(co_name=name, co_qualname=name)
    return types.FunctionType(code, call_flex.__globals__, name)
