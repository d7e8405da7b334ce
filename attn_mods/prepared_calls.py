"""What ``attention`` found out about a call, kept for calls alike: checks and choice take longer than short kernels.

Alike are calls of the same recipe object on tensors of the same kind, while no tensor of the recipe changes. Of q, k
and v nothing is kept. Recipes with a user's function are not kept, since what it refers to may change unseen, nor those
with large tables, which would outlive their use; nor calls with an offset, which differ from step to step, or inside of
transformations.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from attn_mods.backends import Runner
from attn_mods.function_state import Same, tensor_state
from attn_mods.parameters import Parameterised
from attn_mods.user_function import UserFunction

MOST = 64
MOST_BYTES = 2**20
"""Of the tensors of one recipe."""

DEVICES = ("cpu", "cuda", "xpu")
PLAIN_TENSORS = (Tensor, Parameter)


@dataclass(frozen=True)
class _Kept:
    recipe: Parameterised | None
    tensors: tuple[Tensor, ...]
    state: tuple[object, ...]
    runner: Runner


_kept: OrderedDict[Hashable, _Kept] = OrderedDict()
_lock = threading.Lock()


def signature_of(
    recipe: object, q: Tensor, k: Tensor, v: Tensor, return_lse: bool, backend: str, invariant: bool
) -> Hashable | None:
    """What calls are alike by; None for one that is not kept."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    for each in (q, k, v):
        if type(each) not in PLAIN_TENSORS or each.is_nested or each.layout != torch.strided:
            return None
    if q.device.type not in DEVICES or torch.is_autocast_enabled(q.device.type):
        return None
    if type(return_lse) is not bool or type(invariant) is not bool or type(backend) is not str:
        return None
    kinds = tuple((each.shape, each.dtype, each.device, each.requires_grad) for each in (q, k, v))
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return None if recipe is None else Same(recipe), kinds, modes, return_lse, backend, invariant


def kept(signature: Hashable) -> Runner | None:
    """What runs a call alike; None if none is known, or a tensor of the recipe has changed."""
    with _lock:
        found = _kept.get(signature)
        if found is None:
            return None
        if found.state != _state(found.tensors):
            del _kept[signature]
            return None
        _kept.move_to_end(signature)
        return found.runner


def keep(signature: Hashable, recipe: object, runner: Runner) -> None:
    """Keep what runs a call, if all that it depends on can be watched."""
    part = recipe if isinstance(recipe, Parameterised) else None
    if part is not None and any(isinstance(each, UserFunction) for each in _all_parts(part)):
        return
    tensors = () if part is None else tuple(part.tensors().values())
    if sum(each.nbytes for each in tensors) > MOST_BYTES:
        return
    with _lock:
        _kept[signature] = _Kept(part, tensors, _state(tensors), runner)
        if len(_kept) > MOST:
            _kept.popitem(last=False)


def forget() -> None:
    """Nothing is kept."""
    with _lock:
        _kept.clear()


def _state(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    return tuple((tensor_state(each), each.requires_grad, each.shape, each.dtype, each.device) for each in tensors)


def _all_parts(part: Parameterised) -> Iterable[Parameterised]:
    yield part
    for inner in part.parts().values():
        yield from _all_parts(inner)
