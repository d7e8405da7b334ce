"""Tensors a rule derives from its parameters, made for certain before the kernel that reads them.

Inside a user's torch.compile the derivation would be traced with the attention, and the CPU kernel of flex_attention
(torch 2.13) refuses a captured tensor that the compiler has not yet stored: "No choices exist for backend".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def realised(tensor: Tensor) -> Tensor:
    """The same tensor; while compiling, through an operator the compiler does not look into, which stores it."""
    return _realised(tensor) if torch.compiler.is_compiling() else tensor


@torch.library.custom_op("attn_mods::realised", mutates_args=())
def _realised(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


@_realised.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _gradient(context: Any, gradient: Tensor) -> Tensor:
    return gradient


_realised.register_autograd(_gradient)
