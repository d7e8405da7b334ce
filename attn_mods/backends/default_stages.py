"""Fewer stages of pipelining where those of torch's one choice of tiles do not fit into a card.

Inside a user's torch.compile in its default mode the Triton kernels of flex_attention have one choice of tiles each, by
dtype and head dim, whatever the rules read. What is read from a tensor at each pair of positions takes a tile of shared
memory for every stage but the one at work: with a table of float32, head dim 64 and a half type an H200 is asked for
245,760 bytes of its 232,448 (seen in 2.11), and nothing compiles. Tuned kernels have smaller tiles among their choices.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from attn_mods.backends.mending import is_mended, mended, once

Sizes = Callable[[str], int]
"""The size of a tile by the name of its option, which the choice of tiles has in lower case."""


@dataclass(frozen=True)
class Kernel:
    """One of the two: what chooses its tiles, its operator, and where that has the rules and the options.

    Args:
        choice: The method of torch's choices.
        operator: What the compiler's graph calls.
        score: Place of the score's rule among its arguments.
        lists: Place of the lists, whose last is the mask's rule.
        options: Place of the kernel options.
        prefix: Of options that are for this kernel alone.
        shared: ``shared(tile, row, read, stages)`` are the bytes of shared memory that it takes, for rows of q, k and v
            of ``row`` bytes and ``read`` bytes read at each pair.
    """

    choice: str
    operator: Any
    score: int
    lists: int
    options: int
    prefix: str
    shared: Callable[[Sizes, int, int, int], int]


def shared_forward(tile: Sizes, row: int, read: int, stages: int) -> int:
    """What is read, k and v in stages, and q."""
    rows, columns = tile("BLOCK_M"), tile("BLOCK_N")
    return (stages - 1) * rows * columns * read + (2 * stages * columns + rows) * row


def shared_backward(tile: Sizes, row: int, read: int, stages: int) -> int:
    """The more of two loops.

    Gradients of k and v: what is read, q, the gradient of the output and two numbers a query in stages, and k and v.
    Gradient of q: what is read, k and v in stages, and q and the gradient of the output.
    """
    queries, keys = tile("BLOCK_M1"), tile("BLOCK_N1")
    of_keys = (stages - 1) * queries * (keys * read + 8) + 2 * (stages * queries + keys) * row
    queries, keys = tile("BLOCK_M2"), tile("BLOCK_N2")
    return max(of_keys, (stages - 1) * queries * keys * read + 2 * (stages * keys + queries) * row)


KERNELS = (
    Kernel(
        "get_flex_attention_fwd_configs",
        torch.ops.higher_order.flex_attention,
        score=3,
        lists=4,
        options=6,
        prefix="fwd_",
        shared=shared_forward,
    ),
    Kernel(
        "get_flex_attention_bwd_configs",
        torch.ops.higher_order.flex_attention_backward,
        score=7,
        lists=9,
        options=11,
        prefix="bwd_",
        shared=shared_backward,
    ),
)


@once  # every call of attention asks
def mend_default_stages() -> None:
    """Mend what chooses the tiles of both kernels."""
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    choices = importlib.import_module("torch._inductor.choices").InductorChoices
    for kernel in KERNELS:
        if not is_mended(getattr(choices, kernel.choice)):
            setattr(choices, kernel.choice, _that_fit(getattr(choices, kernel.choice), kernel))


def _that_fit(original: Callable[..., list[Any]], kernel: Kernel) -> Callable[..., list[Any]]:
    compiler = importlib.import_module("torch._inductor.virtualized").V
    signature = inspect.signature(original)  # that of 2.14 has a length between the head dimension and the dtype

    @mended
    @functools.wraps(original)
    def configs(*asked: Any, **named: Any) -> list[Any]:
        found = original(*asked, **named)
        told = signature.bind(*asked, **named)
        told.apply_defaults()
        room = shared_memory() if told.arguments["device_type"] == "cuda" else None
        node = compiler.current_node
        if len(found) != 1 or room is None or node.target is not kernel.operator:
            return found
        row = told.arguments["head_dim"] * told.arguments["dtype"].itemsize
        options, read = node.args[kernel.options], bytes_read_at_pairs(node, kernel)
        return [stages_that_fit(kernel, found[0], options, row, read, room)]

    return configs


def shared_memory() -> int | None:
    """Bytes that a kernel may have of it on the current card; None where it does not say."""
    return getattr(torch.cuda.get_device_properties(), "shared_memory_per_block_optin", None) or None


def stages_that_fit(kernel: Kernel, config: Any, options: dict[str, Any], row: int, read: int, room: int) -> Any:
    """The choice of tiles with as many stages, up to its own, as fit into ``room`` bytes, but for one at least."""

    def tile(name: str) -> int:
        size: int = options.get(kernel.prefix + name, options.get(name, getattr(config, name.lower())))
        return size

    stages = config.num_stages
    while read and stages > 1 and kernel.shared(tile, row, read, stages) > room:
        stages -= 1
    return replace(config, num_stages=stages)


def bytes_read_at_pairs(node: Any, kernel: Kernel) -> int:
    """What score and mask of a flex_attention read from tensors for each pair of a query and a key."""
    rules = (node.args[kernel.score], 3), (node.args[kernel.lists][-1], 2)
    return sum(_read_at_pairs(getattr(node.graph.owning_module, rule.target).graph, q_idx) for rule, q_idx in rules)


def _read_at_pairs(rule: Graph, q_idx: int) -> int:
    """The same of one rule, whose argument number ``q_idx`` is the query's position and the next the key's."""
    arguments = [node for node in rule.nodes if node.op == "placeholder"]
    positions: dict[Node, set[str]] = {arguments[q_idx]: {"query"}, arguments[q_idx + 1]: {"key"}}
    read = 0
    for node in rule.nodes:
        if node.op == "call_function":
            positions[node] = set().union(*(positions.get(other, ()) for other in node.all_input_nodes))
            if node.target is torch.ops.aten.index.Tensor and len(positions[node]) == 2:
                read += node.meta["val"].dtype.itemsize
    return read
