"""What a rule (a mask_mod) must be, and the errors that say what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attn_mods.tiles.operations import DRAWS

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

INDEX_DTYPES = (torch.int64, torch.int32)
"""Dtypes of positions in a tensor: torch takes uint8 and bool for masks, and refuses all others."""


class RuleError(TypeError):
    """A rule that is no mask_mod: what it did, and what to write instead."""


class ControlFlowError(RuleError):
    """A rule that reads an index value in Python, which has no single value."""


class Unsupported(Exception):
    """The calculus does not know this; the tiles concerned stay UNKNOWN."""


def rule_name(rule: Any) -> str:
    """The name a message calls a rule by."""
    return str(getattr(rule, "__qualname__", None) or getattr(rule, "__name__", None) or type(rule).__name__)


def check_rule(rule: Any) -> None:
    """Raise unless the rule can be called as rule(b, h, q_idx, kv_idx) by FlexAttention.

    FlexAttention tells a mask_mod from a score_mod by its number of positional arguments without default, and counts
    the `self` of a bound method, so a bound method is refused as well.

    Raises:
        RuleError: With the name of the rule and what to write instead.
    """
    name = rule_name(rule)
    if not callable(rule):
        raise RuleError(
            f"{name}: a mask_mod must be callable as mask_mod(b, h, q_idx, kv_idx), got {rule!r}; "
            "pass a function of the four indices that returns a bool tensor"
        )
    if inspect.ismethod(rule):
        raise RuleError(
            f"{name}: a bound method is no mask_mod, FlexAttention counts its `self` as an argument; return a plain "
            "function mask_mod(b, h, q_idx, kv_idx) that closes over what it needs"
        )
    count = positional_count(rule)
    if count != 4:
        hint = "; five arguments make it a score_mod, which has no BlockMask" if count == 5 else ""
        raise RuleError(f"{name}: a mask_mod takes four arguments (b, h, q_idx, kv_idx), this one takes {count}{hint}")


def positional_count(rule: Callable[..., Any]) -> int:
    """Positional arguments without a default, counted as FlexAttention counts them."""
    code = getattr(rule, "__code__", None)
    if code is not None:
        return int(code.co_argcount) - len(getattr(rule, "__defaults__", None) or ())
    try:
        parameters = inspect.signature(rule).parameters.values()
    except ValueError:
        return 4
    return sum(parameter.default is inspect.Parameter.empty for parameter in parameters)


def check_result(rule: Any, result: Any) -> None:
    """Raise unless what a rule returned is one boolean tensor value per position.

    Args:
        rule: The rule, for its name.
        result: What it returned for one position.

    Raises:
        RuleError: If it is no tensor, or not bool, or not 0-d.
    """
    name = rule_name(rule)
    if not isinstance(result, Tensor):
        got = f"{result!r} ({type(result).__name__})" if isinstance(result, (int, float, type(None))) else type(result)
        raise RuleError(
            f"{name}: a mask_mod must return a boolean tensor, this one returned {got}; to keep every position write "
            "`q_idx >= 0`, or `b.new_ones((), dtype=torch.bool)`"
        )
    if result.dtype != torch.bool:
        raise RuleError(
            f"{name}: a mask_mod must return a boolean tensor, this one returned {result.dtype}; compare the value, "
            "such as `value != 0`, or call `.bool()`"
        )
    if result.dim() != 0:
        raise RuleError(
            f"{name}: a mask_mod must return one value per position, this one returned shape {tuple(result.shape)}; "
            "reduce it with `.any()` or `.all()`, or index it"
        )


def reads_a_value(rule_label: str, operation: str) -> ControlFlowError:
    """The error for a Python decision on an index value."""
    what = {
        "__array__": "hands an index value to NumPy",
        "__bool__": "uses an index value as a Python condition",
        "__index__": "uses an index value as a Python int",
        "numpy": "hands an index value to NumPy",
    }
    did = what.get(operation, f"reads an index value in Python (`{operation}`)")
    return ControlFlowError(
        f"{rule_label}: the rule {did}; b, h, q_idx and kv_idx stand for all positions at once. Write `&` for `and`, "
        "`|` for `or`, `~` for `not`, `(lower <= x) & (x < upper)` for a chained comparison, "
        "torch.where(condition, x, y) for `if`, torch.minimum / torch.maximum for min / max, `table[index]` on a "
        "tensor for a list or an array, and torch's functions for those of math and NumPy"
    )


def draws_random_numbers(rule_label: str) -> RuleError:
    """The error for a rule that is another one each time."""
    return RuleError(
        f"{rule_label}: the rule draws random numbers, so it would keep other positions each time; draw them once, "
        "outside the rule, and index the tensor"
    )


def indexes_with(rule_label: str, dtype: torch.dtype) -> RuleError:
    """The error for an index that is no position."""
    return RuleError(
        f"{rule_label}: what a rule indexes a tensor by must be int64 or int32, this one indexes by {dtype}; convert "
        "it, such as `table[index.long()]`, or for a choice write torch.where(condition, x, y)"
    )


class NoRandomNumbers(TorchFunctionMode):
    """Refuses to draw random numbers, before any is drawn: the rule would keep other positions at each evaluation.

    It watches the calls of this thread alone. The state of a generator would tell what other threads draw as well.
    """

    def __init__(self, rule: Any) -> None:
        super().__init__()
        self.rule = rule

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Raise RuleError for a function that draws, else call it."""
        if getattr(function, "__name__", "").partition(".")[0] in DRAWS:
            raise draws_random_numbers(rule_name(self.rule))
        return function(*arguments, **(keywords or {}))


def describe(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"
