"""A user's functions, tried at one position before anything is computed, so that a mistake is named in plain words."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attn_mods import checks
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.parameters import Parameterised
from attn_mods.score import UserScore
from attn_mods.tiles.operations import READS_A_VALUE
from attn_mods.tiles.rule import RuleError, check_result, check_rule, positional_count, reads_a_value
from attn_mods.user_rule import UserRule

_tried: weakref.WeakSet[Callable[..., Tensor]] = weakref.WeakSet()


def check_user_functions(part: Parameterised, device: torch.device) -> None:
    """Try every mask_mod and score_mod of the user's own once; of those made while a compiler traces, none.

    Raises:
        TypeError: A function that decides in Python on an index value, hands one to NumPy, draws random numbers,
            returns something else than a bool or a score, or takes other arguments.
    """
    if isinstance(part, (UserRule, UserScore)) and not part.is_of_a_trace:
        arguments = part.rule, part.name, part.takes_a_score(), str(device)
        if not torch.compiler.is_compiling():
            _try_once(*arguments)
        elif (refusal := _refusal(*arguments)) is not None:
            raise RuleError(refusal)
    for inner in part.parts().values():
        check_user_functions(inner, device)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # tried outside of a graph that is traced
def _refusal(rule: Callable[..., Tensor], name: str, takes_a_score: bool, device: str) -> str | None:
    """What is wrong with a function, as a text: a compiler reports an exception from outside as a fault of its own."""
    try:
        _try_once(rule, name, takes_a_score, device)
    except TypeError as error:
        return str(error)
    return None


def _try_once(rule: Callable[..., Tensor], name: str, takes_a_score: bool, device: str) -> None:
    if not _is_tried(rule):
        _try(rule, name, takes_a_score, device)
        _remember(rule)


# A compiler that gave a call up would else take the function's own frame, and fail in words of its own.
@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's has no types
def _try(rule: Callable[..., Tensor], name: str, takes_a_score: bool, device: str) -> None:
    if not takes_a_score:
        check_rule(rule)
    elif positional_count(rule) != 5:
        remedy = "write it as score_mod(score, b, h, q_idx, kv_idx)"
        got = f"one that takes {positional_count(rule)}"
        checks.fail(name, "a score_mod takes five arguments", got, remedy, TypeError)

    def checked(*arguments: Tensor) -> Tensor:
        with _Watched(name):
            result = rule(*arguments)
        if takes_a_score:
            _check_score(name, result)
        else:
            check_result(rule, result)
        return result

    zero = torch.zeros(1, dtype=torch.int64, device=device)
    score = torch.zeros(1, 1, 1, 1, device=device) if takes_a_score else None
    with torch.no_grad():
        first, second = (_evaluated(checked, name, zero, score) for _ in range(2))
    if not bool(((first == second) | (first.isnan() & second.isnan())).all()):
        got = f"{first.item()}, then {second.item()}"
        _fail_for_randomness(name, f"{got} at the same position")


def _evaluated(checked: Callable[..., Tensor], name: str, zero: Tensor, score: Tensor | None) -> Tensor:
    try:
        return evaluate_everywhere(checked, zero, zero, zero, zero, score)
    except RuntimeError as error:
        if "random operation" not in str(error):
            raise
        _fail_for_randomness(name, "one that draws random numbers")


def _check_score(name: str, result: object) -> None:
    if not isinstance(result, Tensor) or not result.dtype.is_floating_point or result.ndim:
        remedy = "compute with torch on the score that is passed in"
        got = f"{result.dtype} of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        checks.fail(name, "a score_mod must return one float tensor value per pair", got, remedy, TypeError)


def _fail_for_randomness(name: str, got: str) -> NoReturn:
    remedy = "draw the numbers once, outside of the function, and index the tensor"
    checks.fail(name, "a function must give the same at every evaluation", got, remedy, RuleError)


class _Watched(TorchFunctionMode):
    """Names the operation by which a function reads a value that stands for all positions."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Call the function; where it reads a value and torch has none, say so."""
        try:
            return function(*arguments, **(keywords or {}))
        except RuntimeError as error:
            operation = getattr(function, "__name__", "")
            if operation not in READS_A_VALUE:
                raise
            raise reads_a_value(self.name, operation) from error


def _is_tried(rule: Callable[..., Tensor]) -> bool:
    try:
        return rule in _tried
    except TypeError:  # a callable object that cannot be hashed or referred to weakly is tried every time
        return False


def _remember(rule: Callable[..., Tensor]) -> None:
    try:
        _tried.add(rule)
    except TypeError:
        return
