"""The kernels of flash-attn-4 as torch activates them in place of its own.

torch 2.11 expects output and lse of the forward kernel; what newer packages return beyond them is left out here.
"""

from __future__ import annotations

from typing import Any

from flash_attn.cute.interface import _flash_attn_bwd as _flash_attn_bwd  # torch looks for it here
from flash_attn.cute.interface import _flash_attn_fwd as _everything
from torch import Tensor


def _flash_attn_fwd(*arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
    """Output and lse."""
    out, lse, *_ = _everything(*arguments, **keywords)
    return out, lse
