"""Which rules the FLASH kernel of flex_attention is known to compile: those made of operations seen right on a card.

Rules of the catalogue that consist of these were held against float64 there (torch 2.11), forward and backward. Others
may work. What does not: a captured tensor of no dimension, and one that is read at a number in place of a position,
``table[0, h]``, of which the kernel reads another element.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attn_mods.function_state import branch_signature, tensors_of
from attn_mods.recipe import Recipe
from attn_mods.score import Score
from attn_mods.score_compositions import ShiftedScore

SEEN = frozenset(
    {
        "_local_scalar_dense",
        "_to_copy",
        "abs",
        "add",
        "bitwise_and",
        "bitwise_or",
        "clamp",
        "div",
        "eq",
        "exp2",
        "floor_divide",
        "ge",
        "gt",
        "le",
        "lift_fresh",
        "log",
        "lt",
        "maximum",
        "minimum",
        "mul",
        "ne",
        "neg",
        "new_ones",
        "pow",
        "promote_types",
        "remainder",
        "rsub",
        "select",
        "sub",
        "tanh",
        "where",
    }
)

PICKED, READ = "select", "_local_scalar_dense"
"""Reading a tensor at a position is both: the position is made a number, and picked. At a number it is the first."""

MOST_KNOWN = 256
POSITIONS = 4
"""How many a rule is handed: sample, head, query and key."""


@dataclass(frozen=True)
class _Rule:
    """What is known of a rule.

    Attributes:
        unseen: What of it was not seen to compile, in words; None if nothing.
        reads_positions: Whether its value depends on more than the score.
    """

    unseen: str | None
    reads_positions: bool


_known: OrderedDict[Hashable, _Rule] = OrderedDict()
_lock = threading.Lock()


def unseen_in(recipe: Recipe, form: str) -> str | None:
    """What of a recipe's rules was not seen to compile, in words; None if nothing.

    Args:
        recipe: The placed recipe.
        form: Name of the form of the score's rule.
    """
    rules = [] if recipe.mask is None else [_known_of(recipe.mask.mask_mod(), scores=0)]
    if recipe.score is not None:
        rules.append(_known_of(recipe.score.score_mod(form), scores=1))
    return next((rule.unseen for rule in rules if rule.unseen is not None), None)


def reads_positions(score: Score, form: str) -> bool:
    """Whether a score depends on the sample, the head or a position, and not on the score before it alone."""
    while isinstance(score, ShiftedScore):  # which adds to positions whatever is inside
        score = score.score
    return _known_of(score.score_mod(form), scores=1).reads_positions


def _known_of(rule: Callable[..., Tensor], scores: int) -> _Rule:
    signature = branch_signature(rule)
    if signature is None:
        return _look(rule, scores)
    key = signature, scores
    with _lock:
        if key in _known:
            return _known[key]
    found = _look(rule, scores)
    with _lock:
        _known[key] = found
        if len(_known) > MOST_KNOWN:
            _known.popitem(last=False)
    return found


def _look(rule: Callable[..., Tensor], scores: int) -> _Rule:
    arguments = *(torch.tensor(0.5) for _ in range(scores)), *(torch.tensor(0) for _ in range(POSITIONS))
    with torch.no_grad(), _Operations(arguments[scores:]) as operations:
        out = rule(*arguments)
    unseen = sorted(set(operations.names) - SEEN)
    text = f"the operation {unseen[0]}" if unseen else None
    if operations.names[PICKED] > operations.names[READ]:
        text = "a captured tensor that is read at a number"
    if any(tensor.dim() == 0 for tensor in tensors_of(rule)):
        text = "a captured tensor of no dimension"
    return _Rule(text, operations.touched or operations.is_watched(out))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class has no types
    """Names of the operations that run, how often, and whether one of them is handed any of some tensors.

    To look at a tensor through a view is an operation too.
    """

    def __init__(self, watched: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor has its method
        self.names: Counter[str] = Counter()
        self.touched = False
        self._watched = {id(tensor) for tensor in watched}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        self.names[function.overloadpacket.__name__] += 1
        self.touched |= any(map(self.is_watched, tree_leaves((arguments, keywords))))
        return function(*arguments, **(keywords or {}))

    def is_watched(self, value: object) -> bool:
        """Whether it is one of the tensors."""
        return id(value) in self._watched
