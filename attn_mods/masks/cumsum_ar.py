"""A token sees its own group, whose tokens all see each other, and every earlier group.

Rule: with c the running sum of ``mask_ar``, keep (i, j) iff c[j] <= c[i] and both tokens are valid.
From: ``make_attn_mask`` of big_vision (PaliGemma) and openpi (pi0); read in both. A 1 in mask_ar starts a new group:
[1 1 1 1] is causal, [0 0 1 1] a prefix of two tokens, [1 0 1 0] block-causal. A first entry of 0 or 1 is the same.
Trap: padding hides the padded queries too, so their rows are empty and give output 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.documents import check_total
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._rows import one_row


@dataclass(frozen=True, eq=False)
class CumsumAr(Mask):
    """Keep (i, j) iff c[j] <= c[i], c = cumsum(mask_ar), and i and j are valid.

    Args:
        mask_ar: 1 (True) where earlier tokens cannot see this one, so a new group starts; 0 where it belongs to the
            group of the token before. Integer or bool, [S] or [B, S].
        valid: False for padding, which sees nothing and is seen by nothing; bool, [S] or [B, S]. None = all valid.

    Shapes:
        kv_len is S; ``q_offset`` is required if q_len differs.

    Raises:
        ValueError: Values other than 0 and 1, shapes that do not fit, or (at use) an S that is not kv_len.
        TypeError: A mask_ar that is not integer or bool, a valid that is not bool.

    References:
        Beyer et al. 2024, arXiv 2407.07726, figure 2; Black et al. 2024, arXiv 2410.24164, appendix B.
    """

    mask_ar: Tensor
    valid: Tensor | None = None

    entry = Entry(
        title="Cumulative autoregressive groups",
        summary="A token sees its own group, whose tokens all see each other, and every earlier group.",
        papers=(
            Paper("PaliGemma: A versatile 3B VLM for transfer", "2407.07726", where="figure 2, prefix-LM masking"),
            Paper(
                "pi0: A Vision-Language-Action Flow Model for General Robot Control",
                "2410.24164",
                where="appendix B, blockwise causal attention mask",
            ),
        ),
        models=(Model("PaliGemma", field="mask_ar"), Model("pi0", field="ar_mask")),
        tags=frozenset({"multimodal", "prefix", "block", "decoder"}),
        picture="""
            xxx.....
            xxx.....
            xxx.....
            xxxxx...
            xxxxx...
            xxxxxx..
            xxxxxxx.
            xxxxxxxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: CumsumAr(_groups(kv_len, device))),
            "causal": Case(lambda q_len, kv_len, device: CumsumAr(torch.ones_like(_groups(kv_len, device)))),
            "one_group": Case(lambda q_len, kv_len, device: CumsumAr(torch.zeros_like(_groups(kv_len, device)))),
            "padding": Case(lambda q_len, kv_len, device: CumsumAr(_groups(kv_len, device), _valid(kv_len, device)[1])),
            "padding_per_sample": Case(
                lambda q_len, kv_len, device: CumsumAr(_groups(kv_len, device), _valid(kv_len, device))
            ),
            "per_sample": Case(lambda q_len, kv_len, device: CumsumAr(_samples(kv_len, device))),
            "one_row": Case(lambda q_len, kv_len, device: CumsumAr(_groups(kv_len, device)[None])),
            "bench": Case(lambda q_len, kv_len, device: CumsumAr(_prefix(kv_len, device))),
        },
        traps=(
            "mask_ar marks the token that starts a group; it is not a mask of the causal tokens' queries.",
            "valid hides padded queries as well as padded keys, as big_vision and openpi do.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass 1 where a new group starts and 0 elsewhere"
        if not (isinstance(self.mask_ar, Tensor) and self.mask_ar.dtype == torch.bool):
            checks.integer_field(self, "mask_ar", 0, remedy, ndim=(1, 2))
        kind = "boolean" if isinstance(self.mask_ar, Tensor) and self.mask_ar.dtype == torch.bool else "integer"
        mask_ar = checks.tensor(self.name, "mask_ar", self.mask_ar, ndim=(1, 2), kind=kind, remedy=remedy)
        if checks.values_can_be_read() and mask_ar.numel() and int(mask_ar.max()) > 1:
            checks.fail(self.name, "mask_ar must be 0 or 1", f"a largest value of {int(mask_ar.max())}", remedy)
        if self.valid is None:
            return
        remedy = "pass True for every real token, [S] or [B, S] as mask_ar has"
        valid = checks.tensor(self.name, "valid", self.valid, ndim=(1, 2), kind="boolean", remedy=remedy)
        if valid.shape[-1] != mask_ar.shape[-1]:
            checks.fail(self.name, f"valid must have S = {mask_ar.shape[-1]} as mask_ar has", valid.shape[-1], remedy)
        checks.broadcast(self.name, "batch sizes", *(t.shape[0] for t in (mask_ar, valid) if t.ndim == 2))

    def mask_mod(self) -> MaskMod:
        """The rule c[j] <= c[i], padding apart: a padded key comes after, and a padded query before every group."""
        group = self.mask_ar.cumsum(-1, dtype=torch.int32)
        q_group, kv_group = one_row(group), one_row(group)
        if self.valid is not None:
            ends = torch.iinfo(torch.int32)
            q_group = one_row(torch.where(self.valid, group, ends.min))
            kv_group = one_row(torch.where(self.valid, group, ends.max))

        def cumsum_ar(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_group[kv_idx] <= q_group[q_idx]

        def cumsum_ar_per_sample(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_group[b, kv_idx] <= q_group[b, q_idx]

        return cumsum_ar if q_group.ndim == 1 else cumsum_ar_per_sample

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Each row ends where the group of its token ends; bool [q_len, kv_len] or [B, 1, q_len, kv_len]."""
        starts = self.mask_ar.bool().clone()
        starts[..., :1] = True
        following = torch.nn.functional.pad(starts[..., 1:], (0, 1), value=True)
        position = torch.arange(starts.shape[-1], device=starts.device)
        ends = torch.where(following, position, starts.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        visible = position <= ends[..., :, None]
        if self.valid is not None:
            visible = visible & self.valid[..., :, None] & self.valid[..., None, :]
        visible = visible[..., :q_len, :kv_len]
        return visible if visible.ndim == 2 else visible[:, None]

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per row of mask_ar or valid."""
        given = (tensor for tensor in (self.mask_ar, self.valid) if tensor is not None and tensor.ndim == 2)
        return max([1, *(tensor.shape[0] for tensor in given)]), 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """mask_ar describes all keys and holds every query."""
        check_total(self.name, "mask_ar", self.mask_ar.shape[-1], q_end, kv_end)


def _groups(length: int, device: str) -> Tensor:
    position = torch.arange(length, device=device)
    return ((position == 3 * length // 8) | (position >= 5 * length // 8)).to(torch.int64)


def _valid(length: int, device: str) -> Tensor:
    position = torch.arange(length, device=device)
    return torch.stack([position >= 0, position < (3 * length + 3) // 4])


def _samples(length: int, device: str) -> Tensor:
    position = torch.arange(length, device=device)
    return torch.stack([position % 48 == 0, position >= length // 3])


def _prefix(length: int, device: str) -> Tensor:
    return (torch.arange(length, device=device) >= 3 * length // 4).to(torch.int32)
