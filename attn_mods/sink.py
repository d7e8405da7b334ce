"""The sink: one more logit in the denominator of the softmax, which has no value vector.

With lse the log-sum-exp of a row without its sink s, and out its output:

    out' = out * sigmoid(lse - s)          lse' = logaddexp(lse, s)

Both are exact. out' and lse' are what the kernel would have returned had it known the sink, so its own backward gives
the exact gradients of q, k and v; the sink's is ds = -sum exp(s - lse') * (dout . out') over the rows.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor


class Kernel(Protocol):
    """A kernel whose backward takes what its forward returned."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Out [B, Hq, q_len, Dv] and lse [B, Hq, q_len], natural log, -inf in empty rows."""
        ...

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v from the weights exp(score - lse) and from grad_out . out of each row."""
        ...


def apply_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """``out * sigmoid(lse - sink)``, differentiable in all three; 0 in empty rows whatever the sink.

    Args:
        out: Output without the sink, [B, H, q_len, Dv].
        lse: Its log-sum-exp, [B, H, q_len], -inf in empty rows.
        sink: One logit per head, [H] or [1]; -inf is no sink.
    """
    empty = lse == -math.inf
    share = torch.sigmoid(lse.masked_fill(empty, 0) - _per_row(sink, lse)).masked_fill(empty, 0)
    return (out.to(share.dtype) * share[..., None]).to(out.dtype)


def lse_with_sink(lse: Tensor, sink: Tensor) -> Tensor:
    """``logaddexp(lse, sink)`` for lse [B, H, q_len] and sink [H] or [1]."""
    return torch.logaddexp(lse, _per_row(sink, lse).expand_as(lse))


def attention_with_sink(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Run a kernel that knows nothing of sinks, differentiable in q, k, v and sink.

    For kernels with a backward of their own that takes lse, as flash kernels have: autograd cannot look inside of them,
    and their lse has no gradient. Where autograd differentiates a backend, ``apply_sink`` alone does.

    Args:
        kernel: The kernel.
        q: Queries [B, Hq, q_len, D].
        k: Keys [B, Hkv, kv_len, D].
        v: Values [B, Hkv, kv_len, Dv].
        sink: One logit per query head, [Hq] or [1].

    Returns:
        out' with the sink, and lse without it. No gradient flows through lse: the weights of one backward cannot
        serve both, so a backend that uses this refuses a call that needs lse and gradients.
    """
    out, lse = _SinkAttention.apply(kernel, q, k, v, sink)  # type: ignore[no-untyped-call]  # torch's has no types
    return out, lse


class _SinkAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = kernel.forward(q, k, v)
        out = apply_sink(out, lse, sink)
        ctx.kernel = kernel
        ctx.save_for_backward(q, k, v, sink, out, lse_with_sink(lse, sink))
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, out, lse = ctx.saved_tensors
        grad_out = gradients[0]
        grad_q, grad_k, grad_v = ctx.kernel.backward(grad_out, q, k, v, out, lse)
        return None, grad_q, grad_k, grad_v, _sink_gradient(grad_out, out, lse, sink)


def _sink_gradient(grad_out: Tensor, out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    logit = _per_row(sink, lse)
    share = torch.exp(logit - lse).where(logit != -math.inf, 0)
    per_head = -(share * (grad_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1)).sum((0, 2))
    return (per_head if sink.numel() > 1 else per_head.sum()).reshape(sink.shape).to(sink.dtype)


def _per_row(sink: Tensor, lse: Tensor) -> Tensor:
    return sink.to(lse.dtype).reshape(1, -1, 1)
