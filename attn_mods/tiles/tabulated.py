"""Tables in place of what a rule computes of one position alone: a scan of pairs does not compute it at each again."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import KEY, QUERY, Grid
from attn_mods.tiles.leaves import chunks, needed
from attn_mods.tiles.pointwise import evaluate


def tabulated(graph: Graph, grid: Grid) -> Graph:
    """The same rule at the positions of a grid, all of it computed by broadcasting; or itself, where tables do not do.

    Raises:
        Exception: Whatever the rule raises at a position.
    """
    if graph.is_direct:
        return graph
    left, read = _walk(graph, _costly(graph) & {node.number for node in graph.nodes if _is_number_of_one(node)})
    if not all(node.direct for node in left):
        return graph
    tables = {node.number: node for variable in (QUERY, KEY) for node in _tables(graph, read, variable, grid)}
    index = (node for node in graph.nodes if node.operation == "index")
    nodes = {node.number: node for node in (*index, *left)} | tables
    return Graph(graph.root, tuple(nodes[number] for number in sorted(nodes)))


def _costly(graph: Graph) -> set[int]:
    """Numbers of nodes that take more than arithmetic of plain numbers."""
    found: set[int] = set()
    for node in graph.nodes:
        if not node.direct or node.shape or any(operand.number in found for operand in node.operands()):
            found.add(node.number)
    return found


def _is_number_of_one(node: Node) -> bool:
    return node.dependence in (QUERY, KEY) and node.levels == node.dependence and not node.shape


def _walk(graph: Graph, readable: Collection[int]) -> tuple[list[Node], list[Node]]:
    """What is still computed if some nodes can be read from tables, and those that are read."""
    reached = {graph.root.number}
    left: list[Node] = []
    read: list[Node] = []
    for node in reversed(graph.nodes):
        if node.number in reached:
            (read if node.number in readable else left).append(node)
            reached.update(operand.number for operand in node.operands() if node.number not in readable)
    return left, read


def _tables(graph: Graph, read: Collection[Node], variable: int, grid: Grid) -> Iterator[Node]:
    """Nodes that look up what those of one variable are at every position."""
    wanted = [node for node in read if node.dependence == variable]
    if not wanted:
        return
    nodes = needed(graph, wanted)
    ranges = chunks(nodes, variable, grid)
    parts = [evaluate(nodes, wanted, {variable: grid.index_values(variable, *ends)}) for ends in ranges]
    (index,) = (node for node in graph.nodes if node.operation == "index" and node.arguments[0] == variable)
    for node in wanted:
        table = torch.cat([part[node.number].flatten() for part in parts])
        function = functools.partial(_at, table, grid.offset(variable))
        yield Node(node.number, "table", function, (index,), {}, variable, variable, node.dtype, (), True)


def _at(table: Tensor, first: int, index: Tensor) -> Tensor:
    return table[index - first]
