"""How much is computed at once."""

from __future__ import annotations

import torch

# A device is given this many times what the CPU is: there a launch costs more than the work, and nothing waits.
_ON_A_DEVICE = 128


def at_once(size: int, device: torch.device | str) -> int:
    """Elements to compute at once, given how many on the CPU.

    On the CPU torch splits most operations over threads from 32,768 elements on; on a busy machine these wait for each
    other longer than the work takes. The memory of small pieces is also reused rather than mapped anew.
    """
    return size if torch.device(device).type == "cpu" else size * _ON_A_DEVICE
