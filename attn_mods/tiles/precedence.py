"""Point out rules in which `&` or `|` took an operand that a comparison was meant to take."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from attn_mods.tiles.graph import Graph, Node

_SIGNS = {"and": "&", "or": "|", "xor": "^"}


def warn_of_precedence(label: str, graph: Graph) -> None:
    """Warn of `keep & b % 2 == 0`, which Python reads as `(keep & (b % 2)) == 0`.

    Args:
        label: Name of the rule.
        graph: What the rule computes.
    """
    for sign in signs_of_mixed_joins(graph):
        warnings.warn(
            f"{label}: `{sign}` joins a boolean and an integer. Python binds `{sign}` tighter than `==` and `<`: "
            f"put parentheses around each comparison, as in `(q_idx >= kv_idx) {sign} (b % 2 == 0)`",
            UserWarning,
            stacklevel=2,
        )


def signs_of_mixed_joins(graph: Graph) -> list[str]:
    """The sign of each operation that joins a boolean and an integer."""
    return [
        _SIGNS[node.operation]
        for node in graph.nodes
        if node.operation in _SIGNS and len({_is_boolean(operand) for operand in node.arguments}) > 1
    ]


def _is_boolean(operand: object) -> bool:
    if isinstance(operand, (Node, Tensor)):
        return operand.dtype == torch.bool
    return isinstance(operand, bool)
