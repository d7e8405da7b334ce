"""From values per position to values per tile: the leaves of the joint tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attn_mods.kernels.chunks import at_once
from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import BATCH, HEAD, KEY, POSITIONS, QUERY, Grid, lead_axis, per_tile
from attn_mods.tiles.pointwise import evaluate
from attn_mods.tiles.values import Bounds, Flag, Interval, Truth, Value, exactly

# Elements of one value evaluated at once.
_CHUNK = 24_576

# Operations that know more of an operand that takes every integer between its ends.
USE_CONNECTED = frozenset(
    {"eq", "ne", "abs", "square", "remainder", "and", "lookup", "isin", "cast"}
    | {"logical_and", "logical_or", "logical_xor", "logical_not", "any", "all"}
)


def leaves(graph: Graph, grid: Grid) -> dict[int, Value]:
    """The value on every tile of each node that a joint node needs and that is not joint itself.

    Returns:
        Node number -> Interval or Truth, [B|1, H|1, rows|1, columns|1, *event].
    """
    operands = [operand for node in graph.nodes if node.is_joint for operand in node.operands()]
    wanted = {operand.number: operand for operand in operands if not operand.is_joint}
    if not graph.root.is_joint:
        wanted[graph.root.number] = graph.root
    use_connected = any(node.is_joint and node.operation in USE_CONNECTED for node in graph.nodes)
    values: dict[int, Value] = {}
    for variable in (QUERY, KEY, 0):
        side = [node for node in wanted.values() if node.dependence & POSITIONS == variable]
        if side:
            values.update(_side(graph, side, variable, grid, use_connected))
    return _with_bounds(values, wanted, grid)


def _side(graph: Graph, wanted: Sequence[Node], variable: int, grid: Grid, use_connected: bool) -> dict[int, Value]:
    """Leaves that depend on one position variable (0: on none), evaluated in chunks of whole tiles."""
    nodes = needed(graph, wanted)
    index_values = {v: grid.index_values(v) for v in (BATCH, HEAD)}
    if not variable:
        return {number: exactly(value, None) for number, value in evaluate(nodes, wanted, index_values).items()}
    parts: dict[int, list[Value]] = {node.number: [] for node in wanted}
    for start, stop in chunks(nodes, variable, grid):
        index_values[variable] = grid.index_values(variable, start, stop)
        values = evaluate(nodes, wanted, index_values)
        for node in wanted:
            connected: Flag = node.operation == "index"
            if not connected and use_connected and not node.dtype.is_floating_point:
                connected = _steps_by_one(values[node.number], variable, grid.block(variable))
            parts[node.number].append(_reduced(values[node.number], variable, grid.block(variable), connected))
    return {number: _joined(values, lead_axis(variable)) for number, values in parts.items()}


def needed(graph: Graph, wanted: Sequence[Node]) -> list[Node]:
    """The wanted nodes and all that they are computed from, operands first."""
    numbers = {node.number for node in wanted}
    for node in reversed(graph.nodes):
        if node.number in numbers:
            numbers.update(operand.number for operand in node.operands())
    return [node for node in graph.nodes if node.number in numbers]


def chunks(nodes: Sequence[Node], variable: int, grid: Grid) -> list[tuple[int, int]]:
    """Ranges of positions, whole tiles each but the last, so that the widest value stays within the chunk size."""
    width = 1
    for node in nodes:
        extents = [grid.extent(v) for v in (BATCH, HEAD) if node.dependence & v]
        width = max(width, torch.Size([*extents, *node.shape]).numel())
    block, length = grid.block(variable), grid.extent(variable)
    step = max(1, at_once(_CHUNK, grid.device) // (width * block)) * block
    return [(start, min(start + step, length)) for start in range(0, length, step)]


def _reduced(values: Tensor, variable: int, block: int, connected: Flag) -> Value:
    if values.dtype == torch.bool:
        every, some = per_tile(values, variable, block, torch.all), per_tile(values, variable, block, torch.any)
        return Truth(every, some, some & ~every)
    low, high = per_tile(values, variable, block, torch.amin), per_tile(values, variable, block, torch.amax)
    if values.dtype.is_floating_point:
        return Interval(low, high, values.dtype, None, ~low.isnan())
    return Interval(low.long(), high.long(), values.dtype, None, True, connected)


def _steps_by_one(values: Tensor, variable: int, block: int) -> Tensor:
    """Where neighbouring positions of a tile differ by at most one, so that no integer in between is skipped."""
    axis = lead_axis(variable)
    length = values.shape[axis]
    values = values.long()
    here, after = values.narrow(axis, 0, length - 1), values.narrow(axis, 1, length - 1)
    step = torch.maximum(here, after) - torch.minimum(here, after)  # negative where it overflows
    last = torch.ones_like(values.narrow(axis, 0, 1), dtype=torch.bool)
    small = torch.cat([(step == 0) | (step == 1), last], axis)
    small.movedim(axis, 0)[block - 1 :: block] = True
    return per_tile(small, variable, block, torch.all)


def _joined(parts: Sequence[Value], axis: int) -> Value:
    if len(parts) == 1:
        return parts[0]

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], axis)

    first = parts[0]
    if isinstance(first, Truth):
        return Truth(cat("every"), cat("some"), cat("mixed"))
    assert isinstance(first, Interval)
    attained = cat("attained") if isinstance(first.attained, Tensor) else first.attained
    connected = cat("connected") if isinstance(first.connected, Tensor) else first.connected
    return replace(first, low=cat("low"), high=cat("high"), attained=attained, connected=connected)


def _with_bounds(values: dict[int, Value], wanted: dict[int, Node], grid: Grid) -> dict[int, Value]:
    """Integer leaves with their static bounds, all read in one synchronisation."""
    asked: list[int] = []
    for number, value in values.items():
        if isinstance(value, Interval) and not value.dtype.is_floating_point:
            if wanted[number].operation == "index":
                values[number] = replace(value, bounds=_index_bounds(wanted[number].arguments[0], grid))
            elif value.low.numel():
                asked.append(number)
    if asked:
        ends = [end for number in asked for end in _ends(values[number])]
        flat: list[int] = torch.stack(ends).tolist()
        for position, number in enumerate(asked):
            bounds: Bounds = (flat[2 * position], flat[2 * position + 1])
            value = values[number]
            if isinstance(value, Interval):
                values[number] = replace(value, bounds=bounds)
    return values


def _index_bounds(variable: int, grid: Grid) -> Bounds:
    return (grid.offset(variable), grid.offset(variable) + grid.extent(variable) - 1)


def _ends(value: Value) -> tuple[Tensor, Tensor]:
    assert isinstance(value, Interval)
    return value.low.min(), value.high.max()


def each_tensor(value: Value, function: Callable[[Tensor], Tensor]) -> Value:
    """A value with a function applied to every tensor of it; equal ends stay one object."""

    def flag(fact: Flag) -> Flag:
        return function(fact) if isinstance(fact, Tensor) else fact

    if isinstance(value, Truth):
        every = function(value.every)
        some = every if value.some is value.every else function(value.some)
        return Truth(every, some, flag(value.mixed))
    if isinstance(value, Interval):
        low = function(value.low)
        high = low if value.high is value.low else function(value.high)
        return replace(value, low=low, high=high, attained=flag(value.attained), connected=flag(value.connected))
    return value
