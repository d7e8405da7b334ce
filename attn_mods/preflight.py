"""A user's functions, tried at one position before anything is computed, so that a mistake is named in plain words."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.parameters import Parameterised
from attn_mods.score import UserScore
from attn_mods.tiles.rule import check_result, check_rule, positional_count, reads_a_value
from attn_mods.user_rule import UserRule

_tried: weakref.WeakSet[Callable[..., Tensor]] = weakref.WeakSet()


def check_user_functions(part: Parameterised, device: torch.device) -> None:
    """Try every mask_mod and score_mod of the user's own once.

    Raises:
        TypeError: A function that decides in Python on an index value, returns something else than a bool or a score,
            or takes other arguments.
    """
    if isinstance(part, (UserRule, UserScore)) and not _is_tried(part.rule):
        _try(part, device)
        _remember(part.rule)
    for inner in part.parts().values():
        check_user_functions(inner, device)


def _try(part: UserRule | UserScore, device: torch.device) -> None:
    score = torch.zeros(1, 1, 1, 1, device=device) if isinstance(part, UserScore) else None
    if score is None:
        check_rule(part.rule)
    elif positional_count(part.rule) != 5:
        remedy = "write it as score_mod(score, b, h, q_idx, kv_idx)"
        got = f"one that takes {positional_count(part.rule)}"
        checks.fail(part.name, "a score_mod takes five arguments", got, remedy, TypeError)

    def checked(*arguments: Tensor) -> Tensor:
        result = part.rule(*arguments)
        if score is None:
            check_result(part.rule, result)
        elif not isinstance(result, Tensor) or not result.dtype.is_floating_point or result.ndim:
            remedy = "compute with torch on the score that is passed in"
            got = f"{result.dtype} of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
            checks.fail(part.name, "a score_mod must return one float tensor value per pair", got, remedy, TypeError)
        return result

    zero = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        evaluate_everywhere(checked, zero, zero, zero, zero, score)
    except RuntimeError as error:
        if "data-dependent control flow" not in str(error) and ".item()" not in str(error):
            raise
        raise reads_a_value(part.name, "item" if ".item()" in str(error) else "__bool__") from error


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
