"""Block lists from a plane of chosen tiles, in pure torch: no sort, bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attn_mods.kernels.chunks import at_once

# Elements of one chunk of rows.
_CHUNK = 24_576


def block_lists(codes: Tensor, code: int) -> tuple[Tensor, Tensor]:
    """Count and list the tiles of each row that have one code.

    Args:
        codes: uint8 [batch, heads, rows, columns], of any strides.
        code: The code to list.

    Returns:
        counts, int32 [batch, heads, rows], and indices, int32 [batch, heads, rows, columns]: the columns with the code
        in ascending order, then the others in ascending order, as a stable sort would put them.
    """
    batch, heads, rows, columns = codes.shape
    counts = torch.zeros(batch, heads, rows, dtype=torch.int32, device=codes.device)
    indices = torch.empty(batch, heads, rows, columns, dtype=torch.int32, device=codes.device)
    column = torch.arange(columns, dtype=torch.int32, device=codes.device)
    step = max(1, at_once(_CHUNK, codes.device) // max(1, columns * batch * heads))
    for start in range(0, rows if indices.numel() else 0, step):
        here = slice(start, start + step)
        chosen = codes[:, :, here].contiguous() == code
        before = chosen.cumsum(-1, dtype=torch.int32)
        count = before[..., -1:]
        place = torch.where(chosen, before - 1, count + (column - before))
        indices[:, :, here].scatter_(-1, place.long(), column.expand(chosen.shape))
        counts[:, :, here] = count[..., 0]
    return counts, indices


def compacted(counts: Sequence[Tensor], indices: Sequence[Tensor]) -> list[Tensor]:
    """Lists of one side, of partial and of full tiles, stored as wide as the longest of them.

    Args:
        counts: int32 [B, H, lines] each.
        indices: int32 [B, H, lines, length] each, all of one shape; an axis of stride 0 stays one.

    Returns:
        Views of that shape. Beyond the width of a line they show the next ones; the last line can be read to its end.
    """
    width = max(1, int(torch.stack([count.max() for count in counts]).max())) if counts[0].numel() else 1
    return [_narrowed(each, width) for each in indices]


def _narrowed(indices: Tensor, width: int) -> Tensor:
    shape = indices.shape
    own = [1 if stride == 0 else size for size, stride in zip(shape[:2], indices.stride()[:2], strict=True)]
    kept = indices[: own[0], : own[1], :, :width]
    storage = indices.new_zeros(kept.numel() + shape[3] - width)
    storage[: kept.numel()].view(kept.shape).copy_(kept)
    strides = (0 if own[0] < shape[0] else own[1] * shape[2] * width, 0 if own[1] < shape[1] else shape[2] * width)
    return storage.as_strided(shape, (*strides, width, 1))
