"""tanh as the one instruction that NVIDIA cards have for it, tanh.approx.f32: off by at most 2^-11 of its value.

Compiled for another device, and uncompiled, it is torch's tanh.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def tanh_approx(x: Tensor) -> Tensor:
    """tanh(x), which torch.compile turns into the instruction on a card."""
    result: Tensor = _TanhApprox.apply(x)  # type: ignore[no-untyped-call]
    return result


@functools.cache
def teach_compiler() -> None:
    """Register the instruction; called where a rule is made, since the compiler takes seconds to import."""
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    instruction = functools.partial(
        ops.inline_asm_elementwise, asm="tanh.approx.f32 $0, $1;", constraints="=f,f", dtype=torch.float32
    )
    register_lowering(torch.ops.attn_mods.tanh_approx)(make_pointwise(instruction))


@torch.library.custom_op("attn_mods::tanh_approx", mutates_args=())
def _tanh_approx(x: Tensor) -> Tensor:
    return torch.tanh(x)


@_tanh_approx.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class _TanhApprox(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.attn_mods.tanh_approx(x)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        of_input: Tensor = gradient * (1 - result * result)
        return of_input

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return tanh_approx(x), in_dims[0]
