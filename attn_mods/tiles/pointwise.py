"""Evaluate nodes at real positions with the real torch operations: exact, whatever the operation.

A value lies on four lead axes [b, h, q, kv], of extent 1 where it does not depend on the variable, then on trailing
axes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles.graph import Node
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, lead_axis
from attn_mods.tiles.rule import Unsupported

_INNERMOST_FIRST = (KEY, QUERY, HEAD, BATCH)


class SeveralResults(Unsupported):
    """An operation that returns several tensors, or what is none.

    Attributes:
        results: What it returned.
    """

    def __init__(self, operation: str, results: Any) -> None:
        super().__init__(f"{operation} returns {type(results).__name__}")
        self.results = results


def evaluate(nodes: Sequence[Node], wanted: Sequence[Node], index_values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Values of nodes at all combinations of the given index values.

    Args:
        nodes: Every node the wanted ones need, operands first.
        wanted: The nodes to return.
        index_values: Variable -> its values, int64, on four lead axes that broadcast with each other.

    Returns:
        Node number -> value, for the wanted nodes.
    """
    last_use = {operand.number: node.number for node in nodes for operand in node.operands()}
    keep = {node.number for node in wanted}
    values: dict[int, Tensor] = {}
    for node in nodes:
        if node.operation == "index":
            values[node.number] = index_values[node.arguments[0]]
        else:
            values[node.number] = apply(node, lambda operand: values[operand.number])
        for operand in node.operands():
            if last_use[operand.number] == node.number and operand.number not in keep:
                values.pop(operand.number, None)
    return {number: values[number] for number in keep}


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def apply(node: Node, value_of: Callable[[Node], Tensor], captured: Callable[[Tensor], Tensor] = _unchanged) -> Tensor:
    """The value of one node, given those of its operands.

    Args:
        node: Any node but an "index".
        value_of: The value of an operand.
        captured: What to take in place of a captured tensor.
    """
    if node.operation == "captured":
        value: Tensor = node.arguments[0]
        return value.reshape((1,) * 4 + value.shape)
    if node.operation == "blank":
        return torch.zeros((1, 1, 1, 1, *node.shape), dtype=node.dtype, device=node.arguments[0])
    if node.direct:
        outcome: Tensor = _call(node, value_of, captured)
        return outcome
    return _apply_by_levels(node, value_of, captured)


def _call(node: Node, value_of: Callable[[Node], Any], captured: Callable[[Tensor], Tensor]) -> Any:
    def replace(value: Any) -> Any:
        if isinstance(value, Node):
            return value_of(value)
        if isinstance(value, Tensor):
            return captured(value)
        if isinstance(value, (tuple, list)):
            return type(value)(replace(item) for item in value)
        return value

    keywords = {key: replace(value) for key, value in node.keywords.items()}
    return node.function(*(replace(value) for value in node.arguments), **keywords)


def look_up(table: Tensor, *indices: Any) -> Tensor:
    """`table[indices]` by broadcasting; negative indices count from the end, others out of range raise IndexError."""
    if table.device.type == "cpu" and table.dim() == len(indices):
        return _take(table, indices)
    return table[tuple(index.long() if isinstance(index, Tensor) else index for index in indices)]


def _take(table: Tensor, indices: tuple[Any, ...]) -> Tensor:
    """The same on the CPU, as a selection along one axis: torch splits `table[indices]` over threads from a few on."""
    flat: Any = 0
    for axis, (index, size) in enumerate(zip(indices, table.shape, strict=True)):
        position = index.long() if isinstance(index, Tensor) else torch.tensor(index)
        for end in (int(position.min()), int(position.max())) if position.numel() else ():
            if not -size <= end < size:
                raise IndexError(f"index {end} is out of bounds for dimension {axis} with size {size}")
        flat = flat * size + torch.where(position < 0, position + size, position)
    return table.reshape(-1).index_select(0, flat.reshape(-1)).reshape(flat.shape)


def index_transform() -> AbstractContextManager[Any]:
    """The mode in which torch evaluates rules: `table[index]` with 0-d indices is a gather, not a view."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # a second of import time

    return TransformGetItemToIndex()


def _apply_by_levels(node: Node, value_of: Callable[[Node], Tensor], captured: Callable[[Tensor], Tensor]) -> Tensor:
    """One operation under the same nest of vmaps that torch's create_mask uses."""
    operands = list({operand.number: operand for operand in node.operands()}.values())
    levels = [variable for variable in _INNERMOST_FIRST if node.levels & variable]

    def call(*values: Tensor) -> Any:
        by_number = {operand.number: value for operand, value in zip(operands, values, strict=True)}
        return _call(node, lambda operand: by_number[operand.number], captured)

    nested: Callable[..., Any] = call
    for variable in levels:
        in_dims = tuple(0 if operand.levels & variable else None for operand in operands)
        nested = torch.vmap(nested, in_dims=in_dims)
    values = _on_their_levels(operands, [value_of(operand) for operand in operands], levels)
    with index_transform():
        outcome = nested(*values)
    if not isinstance(outcome, Tensor):
        raise SeveralResults(node.operation, outcome)
    shape = list(outcome.shape[: len(levels)])
    lead = [shape.pop(0) if node.levels & variable else 1 for variable in reversed(_INNERMOST_FIRST)]
    return outcome.reshape(*lead, *outcome.shape[len(levels) :])


def _on_their_levels(operands: Sequence[Node], values: Sequence[Tensor], levels: Sequence[int]) -> list[Tensor]:
    """Values with only the lead axes torch's vmap has batched them over, and equal extents along each."""
    extents = {
        variable: max(
            value.shape[lead_axis(variable)]
            for operand, value in zip(operands, values, strict=True)
            if operand.levels & variable
        )
        for variable in levels
    }
    placed = []
    for operand, value in zip(operands, values, strict=True):
        shape = [extents[v] if operand.levels & v else 1 for v in reversed(_INNERMOST_FIRST)]
        expanded = value.expand(*shape, *value.shape[4:])
        for variable in _INNERMOST_FIRST:
            if not operand.levels & variable:
                expanded = expanded.squeeze(lead_axis(variable))
        placed.append(expanded)
    return placed
