"""The graph a rule is recorded as. The evaluators walk it; it knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_mods.tiles.grid import POSITIONS


@dataclass(eq=False, slots=True)
class Node:
    """One value a rule computes, one per position. Never changed once made (frozen would triple the time to make one).

    Attributes:
        number: Position in recording order; operands have smaller numbers.
        operation: Name from `operations` ("lt", "lookup", ...), "index" for a variable, "captured" for a rule's
            constant result, "blank" for an operand of which only dtype and shape matter, else torch's own name of the
            function.
        function: The torch function that computes it from the arguments.
        arguments: Operands: nodes, captured tensors, numbers and what else torch takes, tuples and lists of these.
        keywords: Keyword arguments, likewise.
        dependence: Variables its value depends on, a sum of BATCH, HEAD, QUERY and KEY.
        levels: Variables torch's vmap has batched it over (contains `dependence`).
        dtype: What torch computes it in.
        shape: Trailing axes of the value at one position, () for a plain number.
        direct: Whether broadcasting over the lead axes computes what torch's vmap does, bit for bit.
    """

    number: int
    operation: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    dependence: int
    levels: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    direct: bool

    def operands(self) -> Iterator[Node]:
        """The nodes among the arguments, at any depth."""
        for argument in self.arguments:
            if type(argument) is Node:
                yield argument
            elif isinstance(argument, (tuple, list, dict)):
                yield from nodes_in(argument)
        if self.keywords:
            yield from nodes_in(self.keywords)

    @property
    def is_joint(self) -> bool:
        """Whether the value depends on q_idx and kv_idx both."""
        return self.dependence & POSITIONS == POSITIONS


@dataclass(frozen=True, slots=True)
class Graph:
    """What a rule computes: the node of its result and every node that one needs, operands first."""

    root: Node
    nodes: tuple[Node, ...]

    @property
    def is_direct(self) -> bool:
        """Whether broadcasting computes the rule as torch's nested vmap does, in a fraction of the time."""
        return all(node.direct for node in self.nodes)


def nodes_in(value: Any) -> Iterator[Node]:
    """Every node in a nest of tuples, lists and dictionaries."""
    return (item for item in _items(value) if isinstance(item, Node))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every captured tensor in such a nest."""
    return (item for item in _items(value) if isinstance(item, Tensor))


def numbers_in(value: Any) -> Iterator[int | float]:
    """Every Python number in such a nest."""
    return (item for item in _items(value) if isinstance(item, (int, float)))


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _items(item)
    else:
        yield value
