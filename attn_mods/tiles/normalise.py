"""One form for every spelling of an operation, and whether broadcasting alone computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles import operations
from attn_mods.tiles.graph import Node, numbers_in, tensors_in
from attn_mods.tiles.pointwise import look_up
from attn_mods.tiles.rule import INDEX_DTYPES
from attn_mods.tiles.values import fits

_LARGER_OR_SMALLER = {"max": ("maximum", torch.maximum), "min": ("minimum", torch.minimum)}
"""What torch.max and torch.min of two tensors are."""


def normalise(
    name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], device: torch.device
) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
    """The canonical operation of a call: its name, function, arguments and keywords."""
    if name in operations.REFLECTED and len(arguments) == 2 and not keywords:
        operation, function = operations.REFLECTED[name]
        return operation, function, (arguments[1], arguments[0]), keywords
    operation = operations.CANONICAL.get(name, name)
    if name in _LARGER_OR_SMALLER:
        other = arguments[1:] if not keywords else tuple(keywords[key] for key in keywords if key == "other")
        if len(other) == 1 and isinstance(other[0], (Node, Tensor)):  # and no axis, along which it would be reduced
            operation, function = _LARGER_OR_SMALLER[name]
            return operation, function, (arguments[0], *other), {}
    if function is Tensor.where:
        function, arguments = torch.where, (arguments[1], arguments[0], *arguments[2:])
    elif operation == "divide" and keywords.get("rounding_mode") is not None:
        operation = {"floor": "floor_divide", "trunc": "truncate_divide"}[keywords["rounding_mode"]]
    elif name == "to":
        same_device = (device, str(device), device.type)
        arguments = (arguments[0], *(a for a in arguments[1:] if isinstance(a, (Node, Tensor)) or a not in same_device))
        keywords = {key: value for key, value in keywords.items() if key != "device" or value not in same_device}
        if len(arguments) == 1 and not keywords:
            operation, function = "same", torch.clone
    elif operation == "getitem":
        return _normalise_getitem(function, arguments, keywords)
    return operation, function, arguments, keywords


def _normalise_getitem(
    function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
    """`table[i, j]` with one number per axis is a "lookup" (table, i, j); `table[i][j]` is the same lookup."""
    source, index = arguments
    indices = index if isinstance(index, tuple) else (index,)
    if not all(is_one_position(position) for position in indices):
        return "getitem", function, arguments, keywords
    if isinstance(source, Node) and source.operation == "lookup":
        source, indices = source.arguments[0], (*source.arguments[1:], *indices)
    if isinstance(source, Tensor) and len(indices) <= source.dim():
        return "lookup", look_up, (source, *indices), {}
    return "getitem", function, arguments, keywords


def is_one_position(index: Any) -> bool:
    """Whether an index picks one element along an axis, whatever its value."""
    if isinstance(index, Node):
        return index.shape == () and index.dtype in INDEX_DTYPES
    if isinstance(index, Tensor):
        return index.dim() == 0 and index.dtype in INDEX_DTYPES
    return isinstance(index, int) and not isinstance(index, bool)


def is_direct(operation: str, arguments: Any, operands: tuple[Node, ...]) -> bool:
    """Whether plain broadcasting computes what torch's vmap does.

    Under vmap torch promotes captured 0-d tensors and Python numbers in its own way, operation by operation. It makes
    no difference where they have the dtype of the operands, or fit it.
    """
    if operation == "lookup":
        return True
    captured = tuple(tensors_in(arguments))
    if any(operand.shape for operand in operands):
        return False
    dtypes = {operand.dtype for operand in operands if operand.dtype != torch.bool}
    if not all(_keeps_its_value(number, dtypes) for number in numbers_in(arguments)):
        return False
    if operation in operations.ELEMENTWISE:
        same_dtype = len(dtypes | {tensor.dtype for tensor in captured if tensor.dtype != torch.bool}) <= 1
        return not captured or (same_dtype and not any(tensor.dim() for tensor in captured))
    if operation in operations.ELEMENT_AND_TABLE:
        return len(operands) == 1 and len(captured) == 1 and operands[0].dtype == captured[0].dtype
    return False


def _keeps_its_value(number: int | float, dtypes: set[torch.dtype]) -> bool:
    """Whether a Python number is not changed by a cast to any of the dtypes that torch may cast it to."""
    if dtypes & {torch.float16, torch.bfloat16}:
        return False
    integers = [dtype for dtype in dtypes if not dtype.is_floating_point]
    return isinstance(number, float) or all(fits((number, number), dtype) for dtype in integers)
