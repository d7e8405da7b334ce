"""Which rules the FLASH kernel of flex_attention is known to compile: those made of operations seen right on a card.

Rules of the catalogue that consist of these were held against float64 there (torch 2.11), forward and backward. Others
may work; what does not is clamp, minimum and maximum of positions, and a captured tensor of no dimension.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attn_mods.function_state import kernel_signature, tensors_of
from attn_mods.recipe import Recipe

SEEN = frozenset(
    {
        "_local_scalar_dense",
        "_to_copy",
        "add",
        "bitwise_and",
        "bitwise_or",
        "div",
        "eq",
        "exp2",
        "floor_divide",
        "ge",
        "le",
        "lift_fresh",
        "lt",
        "mul",
        "ne",
        "neg",
        "new_ones",
        "promote_types",
        "remainder",
        "select",
        "sub",
        "tanh",
        "where",
    }
)

MOST_KNOWN = 256

_known: OrderedDict[Hashable, str | None] = OrderedDict()
_lock = threading.Lock()


def unseen_in(recipe: Recipe, form: str) -> str | None:
    """What of a recipe's rules was not seen to compile, in words; None if nothing.

    Args:
        recipe: The placed recipe.
        form: Name of the form of the score's rule.
    """
    position = torch.tensor(0)
    rules: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = []
    if recipe.mask is not None:
        rules.append((recipe.mask.mask_mod(), (position,) * 4))
    if recipe.score is not None:
        rules.append((recipe.score.score_mod(form), (torch.tensor(0.5), *(position,) * 4)))
    return next((unseen for unseen in (_unseen(*rule) for rule in rules) if unseen is not None), None)


def _unseen(rule: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> str | None:
    key = kernel_signature(rule)
    with _lock:
        if key in _known:
            return _known[key]
    found = _look(rule, arguments)
    with _lock:
        _known[key] = found
        if len(_known) > MOST_KNOWN:
            _known.popitem(last=False)
    return found


def _look(rule: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> str | None:
    if any(tensor.dim() == 0 for tensor in tensors_of(rule)):
        return "a captured tensor of no dimension"
    with torch.no_grad(), _Operations() as operations:
        rule(*arguments)
    unseen = sorted(operations.names - SEEN)
    return f"the operation {unseen[0]}" if unseen else None


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(keywords or {}))
