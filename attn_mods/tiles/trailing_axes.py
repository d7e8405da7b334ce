"""Values with trailing axes of their own: operations that rearrange them, and any, all and sum over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles.interval import result
from attn_mods.tiles.joint import Joint, Operand, joint
from attn_mods.tiles.operations import STRUCTURAL
from attn_mods.tiles.pointwise import index_transform
from attn_mods.tiles.values import Flag, Interval, Truth, Value, as_truth

_KEYWORDS = ("dim", "dims", "size", "index", "start", "length", "shape", "dim0", "dim1")


def _per_tile(call: Joint, arguments: Sequence[Operand], keywords: dict[str, Operand]) -> Callable[[Tensor], Tensor]:
    """The operation at hand as a function of planes whose trailing axes may have been left at an extent of 1."""
    shape = next(call.node.operands()).shape

    def apply(plane: Tensor) -> Tensor:
        lead = plane.shape[:4]
        whole = plane.expand(*lead, *shape).reshape(-1, *shape)
        with index_transform():
            outcome: Tensor = torch.vmap(lambda element: call.node.function(element, *arguments, **keywords))(whole)
        return outcome.reshape(*lead, *outcome.shape[1:])

    return apply


@joint(*STRUCTURAL - {"stack", "cat"}, keywords=_KEYWORDS)
def rearrange(call: Joint, value: Operand, *arguments: Operand, **keywords: Operand) -> Value | None:
    """Operations that only move or select trailing elements."""
    if any(isinstance(argument, (Interval, Truth, Tensor)) for argument in _flat((arguments, keywords))):
        return None
    move = _per_tile(call, arguments, keywords)

    def flag(fact: Flag) -> Flag:
        return move(fact) if isinstance(fact, Tensor) else fact

    if isinstance(value, Truth):
        return Truth(move(value.every), move(value.some), flag(value.mixed))
    if not isinstance(value, Interval):
        return None
    low = move(value.low)
    high = low if value.low is value.high else move(value.high)
    return Interval(low, high, value.dtype, value.bounds, flag(value.attained), flag(value.connected))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    if isinstance(value, dict):
        return _flat(list(value.values()))
    return [value]


@joint("stack")
def stack(call: Joint, parts: Operand, dim: int = 0) -> Value | None:
    """`torch.stack` of booleans or of numbers of one dtype, all 0-d."""
    if not isinstance(parts, (tuple, list)) or len(call.node.shape) != 1:
        return None
    if all(isinstance(part, Truth) for part in parts):
        return Truth(_stacked([part.every for part in parts]), _stacked([part.some for part in parts]))
    if not all(isinstance(part, Interval) and part.dtype == call.node.dtype for part in parts):
        return None
    bounds = [part.bounds for part in parts if part.bounds is not None]
    hull = (min(b[0] for b in bounds), max(b[1] for b in bounds)) if len(bounds) == len(parts) else None
    return result(call, _stacked([part.low for part in parts]), _stacked([part.high for part in parts]), hull)


def _stacked(planes: list[Tensor]) -> Tensor:
    shape = torch.broadcast_shapes(*(plane.shape for plane in planes))  # type: ignore[no-untyped-call]
    return torch.stack([plane.expand(shape) for plane in planes], -1)


@joint("any", "all", keywords=("dim", "keepdim"))
def quantify(call: Joint, value: Operand, *arguments: Operand, **keywords: Operand) -> Value | None:
    """`x.any(...)` and `x.all(...)` over trailing axes."""
    if not isinstance(value, (Interval, Truth)):
        return None
    truth = as_truth(value)
    reduce = _per_tile(call, arguments, keywords)
    is_one_element = not next(call.node.operands()).shape
    return Truth(reduce(truth.every), reduce(truth.some), truth.mixed if is_one_element else False)


@joint("sum", keywords=("dim", "keepdim"))
def count(call: Joint, value: Operand, *arguments: Operand, **keywords: Operand) -> Value | None:
    """`x.sum(...)` of booleans over trailing axes."""
    if not isinstance(value, Truth):
        return None
    reduce = _per_tile(call, arguments, keywords)
    elements = torch.Size(next(call.node.operands()).shape).numel()
    return result(call, reduce(value.every), reduce(value.some), (0, elements))
