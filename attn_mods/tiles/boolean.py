"""Boolean operations on truths."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_mods.tiles.joint import Joint, Operand, joint, stretch
from attn_mods.tiles.values import Interval, Truth, Value, as_truth, both, either


def truths_in(call: Joint, *operands: Operand, of_numbers: bool = False) -> list[Truth] | None:
    """Operands as truths with equally many axes; None if one is no boolean (numbers count where `of_numbers`)."""
    truths = []
    for operand in operands:
        value = operand
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, device=call.device)
        if isinstance(value, Tensor):
            if value.dtype != torch.bool and not of_numbers:
                return None
            plane = (value != 0).reshape((1,) * 4 + value.shape)
            value = Truth(plane, plane)
        if isinstance(value, Interval) and of_numbers:
            value = as_truth(value)
        if not isinstance(value, Truth):
            return None
        truths.append(value)
    axes = max(truth.every.dim() for truth in truths)
    return [_with_axes(truth, axes) for truth in truths]


def _with_axes(truth: Truth, axes: int) -> Truth:
    if truth.every.dim() == axes:
        return truth
    missing = axes - truth.every.dim()
    every, some = (p.reshape(*p.shape[:4], *(1,) * missing, *p.shape[4:]) for p in (truth.every, truth.some))
    return Truth(every, some, stretch(truth.mixed, axes))


def both_true(call: Joint, a: Operand, b: Operand, of_numbers: bool = False) -> Value | None:
    """`a & b`."""
    truths = truths_in(call, a, b, of_numbers=of_numbers)
    if truths is None:
        return None
    x, y = truths
    mixed = either(either(both(x.mixed, y.every), both(y.mixed, x.every)), call.together(x.mixed, y.mixed))
    return Truth(x.every & y.every, x.some & y.some, mixed)


def either_true(call: Joint, a: Operand, b: Operand, of_numbers: bool = False) -> Value | None:
    """`a | b`."""
    truths = truths_in(call, a, b, of_numbers=of_numbers)
    if truths is None:
        return None
    x, y = truths
    mixed = call.together(x.mixed, y.mixed)
    if x.mixed is not False:
        mixed = either(mixed, both(x.mixed, ~y.some))
    if y.mixed is not False:
        mixed = either(mixed, both(y.mixed, ~x.some))
    return Truth(x.every | y.every, x.some | y.some, mixed)


def exactly_one_true(call: Joint, a: Operand, b: Operand, of_numbers: bool = False) -> Value | None:
    """`a ^ b`."""
    truths = truths_in(call, a, b, of_numbers=of_numbers)
    if truths is None:
        return None
    x, y = truths
    every = (x.every & ~y.some) | (y.every & ~x.some)
    same_everywhere = (x.every & y.every) | ~(x.some | y.some)
    mixed = call.together(x.mixed, y.mixed)
    if x.mixed is not False:
        mixed = either(mixed, both(x.mixed, y.every | ~y.some))
    if y.mixed is not False:
        mixed = either(mixed, both(y.mixed, x.every | ~x.some))
    return Truth(every, ~same_everywhere, mixed)


def negate(a: Truth) -> Truth:
    """`~a`."""
    return Truth(~a.some, ~a.every, a.mixed)


@joint("where")
def choose(call: Joint, condition: Operand, a: Operand, b: Operand) -> Value | None:
    """`torch.where(condition, a, b)` of booleans."""
    truths = truths_in(call, condition, a, b)
    if truths is None:
        return None
    c, x, y = truths
    every = (c.every & x.every) | (~c.some & y.every) | (x.every & y.every)
    some = (c.some & x.some) | (~c.every & y.some)
    mixed = either(both(c.every, x.mixed), both(~c.some, y.mixed))
    decides = (x.every & ~y.some) | (y.every & ~x.some)
    return Truth(every, some & (x.some | y.some), either(mixed, both(c.mixed, decides)))


@joint("and", "mul")
def bitwise_and(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a & b` of booleans, which is also their `*`."""
    return both_true(call, a, b) if call.node.dtype == torch.bool else None


@joint("or", "add")
def bitwise_or(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a | b` of booleans, which is also their `+`."""
    return either_true(call, a, b) if call.node.dtype == torch.bool else None


@joint("xor")
def bitwise_xor(call: Joint, a: Operand, b: Operand) -> Value | None:
    """`a ^ b` of booleans."""
    return exactly_one_true(call, a, b) if call.node.dtype == torch.bool else None


@joint("not", "logical_not")
def not_true(call: Joint, a: Operand) -> Value | None:
    """`~a` of booleans, logical_not of anything."""
    if call.node.dtype != torch.bool:
        return None
    truths = truths_in(call, a, of_numbers=True)
    return negate(truths[0]) if truths is not None else None


@joint("logical_and")
def logical_and(call: Joint, a: Operand, b: Operand) -> Value | None:
    """Whether both are not zero."""
    return both_true(call, a, b, of_numbers=True)


@joint("logical_or")
def logical_or(call: Joint, a: Operand, b: Operand) -> Value | None:
    """Whether one of both is not zero."""
    return either_true(call, a, b, of_numbers=True)


@joint("logical_xor")
def logical_xor(call: Joint, a: Operand, b: Operand) -> Value | None:
    """Whether exactly one of both is not zero."""
    return exactly_one_true(call, a, b, of_numbers=True)
