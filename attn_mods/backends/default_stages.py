"""Fewer stages of pipelining where those of torch's one choice of tiles do not fit into a card.

Inside a user's torch.compile in its default mode the Triton kernel of flex_attention has one choice of tiles, by dtype
and head dim, whatever the rule reads. What is read from a tensor at each pair of positions takes a tile of shared
memory for every stage: with a table of float32, head dim 64 and a half type an H100 is asked for 245,760 bytes of its
232,448 (seen in 2.11), and nothing compiles. A tuned kernel has smaller tiles among its choices,
and the backward kernel of head dim 128 fits with such a table, with the same tiles as for smaller head dims.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from attn_mods.backends.mending import is_mended, mended

SCORE, LISTS, OPTIONS = 3, 4, 6
"""Places among the arguments of flex_attention in the compiler's graph; the mask's rule ends the lists."""


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # at trace time too, outside of the graph
def mend_default_stages() -> None:
    """Mend what chooses the tiles of the forward kernel."""
    _mend_once()


@functools.cache  # every call of attention asks
def _mend_once() -> None:
    importlib.import_module("torch._inductor.compile_fx")  # the compiler's modules cannot be imported in any order
    choices = importlib.import_module("torch._inductor.choices").InductorChoices
    if not is_mended(choices.get_flex_attention_fwd_configs):
        choices.get_flex_attention_fwd_configs = _that_fit(choices.get_flex_attention_fwd_configs)


def _that_fit(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    compiler = importlib.import_module("torch._inductor.virtualized").V

    @mended
    def configs(self: Any, head_dim: int, dtype: torch.dtype, device_type: str | None = "cuda") -> list[Any]:
        found = original(self, head_dim, dtype, device_type)
        room = shared_memory() if device_type == "cuda" else None
        node = compiler.current_node
        if len(found) != 1 or room is None or node.target is not torch.ops.higher_order.flex_attention:
            return found
        return [stages_that_fit(found[0], node.args[OPTIONS], head_dim, dtype, bytes_read_at_pairs(node), room)]

    return configs


def shared_memory() -> int | None:
    """Bytes that a kernel may have of it on the current card; None where it does not say."""
    return getattr(torch.cuda.get_device_properties(), "shared_memory_per_block_optin", None) or None


def stages_that_fit(
    config: Any, options: dict[str, Any], head_dim: int, dtype: torch.dtype, read_at_pairs: int, room: int
) -> Any:
    """The choice of tiles with as many stages, up to its own, as fit into ``room`` bytes, but for one at least.

    What a stage takes is taken from above: a tile of all that is read, of keys and of values.
    """
    rows, columns = (
        options.get(f"fwd_{name}", options.get(name, own))
        for name, own in (("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n))
    )
    queries, keys_and_values = rows * head_dim * dtype.itemsize, 2 * columns * head_dim * dtype.itemsize
    fitting = (room - queries) // (keys_and_values + rows * columns * read_at_pairs)
    return replace(config, num_stages=min(config.num_stages, max(fitting, 1))) if read_at_pairs else config


def bytes_read_at_pairs(node: Any) -> int:
    """What score and mask of a flex_attention read from tensors for each pair of a query and a key."""
    rules = (node.args[SCORE], 3), (node.args[LISTS][-1], 2)
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
