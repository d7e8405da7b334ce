"""A user's rule at every position, with torch's own semantics: the only dense form a bare function has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex


def evaluate_everywhere(
    rule: Callable[..., Tensor], b: Tensor, h: Tensor, q: Tensor, kv: Tensor, scores: Tensor | None = None
) -> Tensor:
    """A mask_mod, or with ``scores`` a score_mod, at every combination of the given indices.

    Args:
        rule: ``rule(b, h, q_idx, kv_idx)`` or ``rule(score, b, h, q_idx, kv_idx)`` on 0-d tensors.
        b: Batch indices, int64 [B].
        h: Head indices, int64 [H].
        q: Query positions, int64 [q].
        kv: Key positions, int64 [kv].
        scores: [B, H, q, kv], for a score_mod.

    Returns:
        [B, H, q, kv].
    """
    prefix = () if scores is None else (0,)
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        rule = torch.vmap(rule, in_dims=(*prefix, *dims))
    with TransformGetItemToIndex():
        return rule(*(() if scores is None else (scores,)), b, h, q, kv)
