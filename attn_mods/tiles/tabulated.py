"""Tables in place of what a rule computes of one position alone: a scan of pairs does not compute it at each again."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import BATCH, HEAD, KEY, POSITIONS, QUERY, Grid
from attn_mods.tiles.joint import LARGEST
from attn_mods.tiles.leaves import chunks, needed
from attn_mods.tiles.normalise import is_one_position
from attn_mods.tiles.pointwise import evaluate, look_up


def tabulated(graph: Graph, grid: Grid) -> Graph:
    """The same rule at the positions of a grid, all of it computed by broadcasting.

    It is the graph itself if it was that already, or if something would be left that broadcasting does not compute.

    Raises:
        Exception: Whatever the rule raises at a position.
    """
    if graph.is_direct:
        return graph
    plan = _plan(graph, _fit_for_tables(graph, grid))
    if not all(node.direct for node in plan.left):
        return graph
    variables = {node.arguments[0]: node for node in graph.nodes if node.operation == "index"}
    nodes = {node.number: node for node in (*variables.values(), *plan.left)}
    for variable in (QUERY, KEY):
        # 0 stands for a sample or head that nothing depends on: the table has one row for all.
        position = [variables.get(each, 0) for each in (variable, BATCH, HEAD)]
        for node, table in _tables(graph, plan.tables, variable, grid):
            for reader in plan.readers[node.number]:
                nodes[reader.number] = _reading(reader, table, grid.offset(variable), position)
    return Graph(graph.root, tuple(nodes[number] for number in sorted(nodes)))


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to evaluate a graph with tables.

    Attributes:
        left: Nodes that are computed as before.
        tables: Nodes that tables are made of.
        readers: By the number of such a node those that become a look-up in its table: the node itself, if it is one
            number a position, or those that pick one of its elements.
    """

    left: list[Node] = field(default_factory=list)
    tables: list[Node] = field(default_factory=list)
    readers: dict[int, list[Node]] = field(default_factory=dict)


def _plan(graph: Graph, fit: set[int]) -> _Plan:
    plan = _Plan()
    reached = {graph.root.number}
    for node in reversed(graph.nodes):  # a node comes before all that it is computed from
        source = _source_of_element(node)
        if node.number in plan.readers:  # one that elements are picked of, by nodes that came before it
            plan.tables.append(node)
        if node.number not in reached:
            continue
        if node.number in fit and not node.shape:
            plan.readers[node.number] = [node]
            plan.tables.append(node)
        elif source is not None and source.number in fit:
            plan.readers.setdefault(source.number, []).append(node)
            reached.update(operand.number for operand in node.operands() if operand is not source)
        else:
            plan.left.append(node)
            reached.update(operand.number for operand in node.operands())
    return plan


def _fit_for_tables(graph: Graph, grid: Grid) -> set[int]:
    """Numbers of nodes of one position alone that broadcasting does not compute, and that fit into a table."""
    costly: set[int] = set()
    fit: set[int] = set()
    for node in graph.nodes:
        if node.direct and not any(operand.number in costly for operand in node.operands()):
            continue
        costly.add(node.number)
        if node.dependence & POSITIONS in (QUERY, KEY):
            extents = [grid.extent(variable) for variable in (BATCH, HEAD, QUERY, KEY) if node.dependence & variable]
            if math.prod((*extents, *node.shape)) <= LARGEST:
                fit.add(node.number)
    return fit


def _source_of_element(node: Node) -> Node | None:
    """What a node picks one element of at each position, if it does nothing else."""
    if node.operation != "getitem":
        return None
    source, index = node.arguments
    if not isinstance(source, Node) or not source.shape:
        return None
    indices = index if isinstance(index, tuple) else (index,)
    is_one = len(indices) == len(source.shape) and all(is_one_position(each) for each in indices)
    return source if is_one else None


def _tables(graph: Graph, nodes: list[Node], variable: int, grid: Grid) -> Iterator[tuple[Node, Tensor]]:
    """Nodes of one variable and what they are at every position: [B|1, H|1, length, *shape]."""
    wanted = [node for node in nodes if node.dependence & POSITIONS == variable]
    if not wanted:
        return
    evaluated = needed(graph, wanted)
    fixed = {each: grid.index_values(each) for each in (BATCH, HEAD)}
    parts = [
        evaluate(evaluated, wanted, {**fixed, variable: grid.index_values(variable, *ends)})
        for ends in chunks(evaluated, variable, grid)
    ]
    axis, other = (2, 3) if variable == QUERY else (3, 2)
    for node in wanted:
        yield node, torch.cat([part[node.number] for part in parts], axis).squeeze(other)


def _reading(node: Node, table: Tensor, first: int, position: Sequence[Node | int]) -> Node:
    """A node as a look-up in a table, of itself or of what it picks an element of."""
    samples, heads, length = table.shape[:3]
    strides = length * heads if samples > 1 else 0, length if heads > 1 else 0
    function = functools.partial(_element, table.flatten(0, 2), first, strides)
    index = node.arguments[1] if table.dim() > 3 else ()
    indices = index if isinstance(index, tuple) else (index,)
    arguments = (*position, *indices)
    return Node(node.number, "table", function, arguments, {}, node.dependence, node.levels, node.dtype, (), True)


def _element(
    table: Tensor, first: int, strides: tuple[int, int], position: Tensor, batch: Any, head: Any, *indices: Any
) -> Tensor:
    """Elements of a table with a row for every sample, head and position, one after another from the first position."""
    row = position - first
    for index, stride in zip((batch, head), strides, strict=True):
        if stride:
            row = row + index * stride
    return look_up(table, row, *indices) if indices else table[row]
