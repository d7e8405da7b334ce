"""tanh as NVIDIA processors compute it in one instruction, for rules that may be a little off."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

LARGEST_ERROR = 2.0**-11
"""Largest relative error of the instruction tanh.approx.f32, by NVIDIA's PTX ISA, section on tanh."""

INSTRUCTION = "tanh.approx.f32 $0, $1;"
FIRST_WITH_THE_INSTRUCTION = (7, 5)


@torch.library.custom_op("attn_mods::approximate_tanh", mutates_args=())
def approximate_tanh(x: Tensor) -> Tensor:
    """tanh(x); in a kernel that torch compiles for an NVIDIA processor, by its own instruction.

    Args:
        x: Numbers of any shape, float.

    Returns:
        The same shape and dtype, off by ``LARGEST_ERROR`` of the value at most where the instruction is there, else
        exact. Gradients are those of tanh at the value returned, in reverse mode alone.
    """
    return torch.tanh(x)


@approximate_tanh.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
    value: Tensor
    (value,) = ctx.saved_tensors
    return gradient * (1 - value * value)


approximate_tanh.register_autograd(_gradient, setup_context=_keep)


@approximate_tanh.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
    return approximate_tanh(x), in_dims[0]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch's has no types
def lower_to_the_instruction() -> None:
    """Tell torch's compiler of the instruction; it is imported whole by this, so only where something is compiled.

    A graph that is being traced runs it at once: what it does is no part of the graph.
    """
    _register()


@cache
def _register() -> None:
    from torch._inductor.lowering import lowerings, make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    instruction = partial(ops.inline_asm_elementwise, asm=INSTRUCTION, constraints="=f,f", dtype=torch.float32)

    # In place of the call of the operator that torch registers by itself when it compiles one before this.
    @register_lowering(torch.ops.attn_mods.approximate_tanh.default)
    def lowered(x: Any) -> Any:
        if not _has_the_instruction(x.get_device()):
            return lowerings[torch.ops.aten.tanh.default](x)
        dtype = x.get_dtype()
        cast = lowerings[torch.ops.prims.convert_element_type.default]
        return cast(make_pointwise(instruction)(cast(x, torch.float32)), dtype)


def _has_the_instruction(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= FIRST_WITH_THE_INSTRUCTION
