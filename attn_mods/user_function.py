"""What a user's mask_mod and score_mod have in common: a bare function, and how many batches and heads it tells apart.

A bare function does not say whether it reads b or h. It is recorded once, as the tile calculus records a rule, and the
record says it. What cannot be recorded, or is made while a compiler traces, is taken to read both.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.function_state import devices_of, requires_grad, rule_state
from attn_mods.mask import Frame
from attn_mods.parameters import Parameterised
from attn_mods.tiles import Grid
from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import BATCH, HEAD
from attn_mods.tiles.rule import RuleError
from attn_mods.tiles.trace import trace

AXES = (("B", "b", BATCH), ("H", "h", HEAD))

_records: weakref.WeakKeyDictionary[Callable[..., Tensor], tuple[object, int]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class UserFunction(Parameterised):
    """A user's function as a part of a recipe.

    Args:
        rule: The function.
        B: Batch size; None = that of q, or 1 if the function does not read b.
        H: Number of query heads; None = that of q, or 1 if the function does not read h.
        rule_frame: What q_idx means to it.
        rule_name: Its name in messages.

    Attributes:
        is_of_a_trace: Whether it was made while a compiler traced, and refers to tensors that do not exist yet.

    Raises:
        TypeError: A rule that cannot be called, B or H that is no int.
        ValueError: B or H below 1, an unknown frame.
    """

    rule: Callable[..., Tensor]
    B: int | None = None
    H: int | None = None
    rule_frame: Frame = "self"
    rule_name: str = "user_rule"
    is_of_a_trace: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_of_a_trace", torch.compiler.is_compiling())
        checks.text("a user's function", "name", self.rule_name, "pass the name that messages call it by")
        if not callable(self.rule):
            remedy = "pass a function of b, h, q_idx and kv_idx"
            checks.fail(self.rule_name, "the rule must be callable", checks.describe(self.rule), remedy, TypeError)
        for axis, size in (("B", self.B), ("H", self.H)):
            if size is not None:
                checks.static_integer_field(self, axis, 1, "pass the size of q, or leave it out")
        if self.rule_frame not in get_args(Frame):
            remedy = f"use one of {', '.join(get_args(Frame))}"
            checks.fail(self.rule_name, "unknown frame", repr(self.rule_frame), remedy)

    @property
    def frame(self) -> Frame:
        """As the user said."""
        return self.rule_frame

    @property
    def name(self) -> str:
        """The function's name, or the one the user gave."""
        return self.rule_name

    def takes_a_score(self) -> bool:
        """Whether the function is a score_mod."""
        return False

    def devices(self) -> set[torch.device]:
        """Where the tensors are that the function refers to."""
        return set() if self.is_of_a_trace else {torch.device(device) for device in devices_of(self.rule)}

    def requires_grad(self) -> bool:
        """Whether a score_mod refers to a tensor that requires grad; no gradient flows through a bool."""
        return self.takes_a_score() and (self.is_of_a_trace or bool(requires_grad(self.rule)))

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) as stated; 1 where nothing is stated and the function does not read the axis.

        Raises:
            ValueError: It reads an axis whose size is not stated.
        """
        if self.B is not None and self.H is not None:
            return self.B, self.H
        read, sizes = self._read(), []
        for (axis, variable, bit), stated in zip(AXES, (self.B, self.H), strict=True):
            if stated is None and read & bit:
                remedy = f"pass {axis}=... to block_mask, or to from_mask_mod or from_score_mod"
                checks.fail(self.name, f"the rule reads {variable}, so {axis} must be stated", "none", remedy)
            sizes.append(1 if stated is None else stated)
        return sizes[0], sizes[1]

    def sized(self, batch: int | None, heads: int | None) -> Self:
        """The function for this many batches and heads, where it reads them and does not state how many.

        Raises:
            ValueError: It reads an axis of which it states one, and there are more.
        """
        changes: dict[str, Any] = {}
        read = self._read()
        for (axis, variable, bit), asked, stated in zip(AXES, (batch, heads), (self.B, self.H), strict=True):
            if asked is None or (stated or 1) > 1 or not read & bit:
                continue
            if stated is None:
                changes[axis] = asked
            elif asked > 1 and not self.is_of_a_trace:
                remedy = f"leave {axis} out, or pass {axis}={asked}"
                checks.fail(self.name, f"the rule reads {variable}, so its {axis} must be {asked}", stated, remedy)
        if not changes:
            return self
        copy = replace(self, **changes)
        object.__setattr__(copy, "is_of_a_trace", self.is_of_a_trace)
        return copy

    def _read(self) -> int:
        return BATCH | HEAD if self.is_of_a_trace else int(variables_read(self.rule, self.takes_a_score()))


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # recorded outside of a graph that is traced
def variables_read(rule: Callable[..., Tensor], takes_a_score: bool) -> int:
    """BATCH and HEAD as far as the function's result depends on them; both if it cannot be recorded.

    Raises:
        RuleError: The function is no mask_mod.
    """
    state = rule_state(rule)
    with contextlib.suppress(TypeError):  # a callable object that cannot be hashed or referred to weakly
        known = _records.get(rule)
        if known is not None and known[0] == state:
            return known[1]
    found = _record(rule, takes_a_score)
    with contextlib.suppress(TypeError):
        _records[rule] = state, found
    return found


def _record(rule: Callable[..., Tensor], takes_a_score: bool) -> int:
    device = next(iter(devices_of(rule)), "cpu")

    def as_mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        return rule(torch.zeros((), device=device), b, h, q_idx, kv_idx) != 0

    try:
        graph = trace(as_mask_mod if takes_a_score else rule, Grid(1, 1, device=device))
    except RuleError:
        if not takes_a_score:
            raise
        return BATCH | HEAD
    except Exception:  # the rule's own error surfaces where its values are needed
        return BATCH | HEAD
    return _dependence(graph) & (BATCH | HEAD)


def _dependence(graph: Graph) -> int:
    """What the result depends on, not counting what is multiplied by 0."""
    found: dict[int, int] = {}
    for node in graph.nodes:
        found[node.number] = 0
        if node.operation == "index":
            found[node.number] = node.dependence
        elif not _is_nothing(node):
            for operand in node.operands():
                found[node.number] |= found[operand.number]
    return found[graph.root.number]


def _is_nothing(node: Node) -> bool:
    integers = not node.dtype.is_floating_point
    return node.operation == "mul" and integers and any(type(each) is int and each == 0 for each in node.arguments)
