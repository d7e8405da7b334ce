"""Mask: which keys a query sees. Its algebra, its frames and its BlockMask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks, compact_lists
from attn_mods.band import Band
from attn_mods.block_mask import build_block_mask, outside_of_graphs
from attn_mods.entry import Entry, entry_name
from attn_mods.parameters import Parameterised
from attn_mods.provenance import remember
from attn_mods.tiles import Grid, States
from attn_mods.tiles import tile_states as calculate_tile_states
from attn_mods.tiles.grid import block_pair

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``mask_mod(b, h, q_idx, kv_idx)``: 0-d integer tensors to a 0-d bool tensor, True = the query sees the key."""

Frame = Literal["self", "cross", "keys"]
"""What the query index i means to a rule, and so whether a call must say where its queries are.

"self": the rule reads i, as a position of the sequence that j counts. Where q_len != kv_len it needs ``q_offset``.
"cross": the rule reads i, as a position of a sequence of its own (cross attention). Lengths differ without an offset.
"keys": the rule does not read i; it is about keys alone.
"""

Offset = int | Tensor
"""An absolute position: an int or a 0-d integer tensor."""


class Mask(Parameterised):
    """Base of all masks: subclass it as a frozen dataclass, write ``mask_mod`` and ``dense``.

    ``a & b``, ``a | b``, ``~a`` and ``a - b`` combine masks in one frame of absolute positions.

    Attributes:
        entry: Metadata of a mask of the catalogue.
        frame: What i means to the rule, see ``Frame``.
    """

    entry: ClassVar[Entry]
    frame: ClassVar[Frame] = "self"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "entry" in cls.__dict__:
            cls.entry = replace(cls.entry, name=entry_name(cls.__name__), kind="mask", build=cls)

    @property
    def name(self) -> str:
        """The entry's name, or the class name of what has no entry."""
        entry = getattr(self, "entry", None)
        return entry.name if entry is not None else entry_name(type(self).__name__)

    def mask_mod(self) -> MaskMod:
        """The rule as FlexAttention takes it: a plain closure over the parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define mask_mod()")

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """The whole mask, written independently of the rule.

        Returns:
            bool [q_len, kv_len] or [B|1, H|1, q_len, kv_len] on the parameters' device, True = visible.
        """
        raise NotImplementedError(f"{type(self).__name__} must define dense()")

    def band(self) -> Band | None:
        """The same mask as a Band, or None where no Band is equal."""
        return None

    def batch_and_heads(self) -> tuple[int, int]:
        """(B, H) that the parameters ask for; 1 where the rule does not depend on the axis."""
        return 1, 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """Raise if the parameters do not describe these positions.

        Args:
            q_end: One past the last query position; None if only the device knows it.
            kv_end: One past the last key position; None if only the device knows it.
        """

    def tile_states(self, grid: Grid) -> States:
        """What is certain of each tile; override it with a closed form where the calculus is loose."""
        return calculate_tile_states(self.mask_mod(), grid)

    def has_own_tile_states(self) -> bool:
        """Whether this mask, or a part of it, overrides ``tile_states``.

        Without, one analysis of the whole rule serves: it knows more of the parts than their states say apart.
        """
        return type(self).tile_states is not Mask.tile_states

    @outside_of_graphs
    def block_mask(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        B: int | None = None,
        H: int | None = None,
        device: torch.device | str | None = None,
        block_size: int | tuple[int, int] = 128,
        q_offset: Offset | None = None,
        separate_full_blocks: bool = True,
        compact: bool | None = None,
    ) -> BlockMask:
        """The exact BlockMask, without evaluating q_len x kv_len positions.

        Under ``torch.compile`` it is a graph break; with ``fullgraph=True`` torch refuses it.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys; q_len if None.
            B: Batch size of the lists; what the parameters ask for if None. To be given if a user's rule reads b.
            H: Number of query heads of the lists; what the parameters ask for if None. Likewise if one reads h.
            device: Where the lists are made; the parameters' device if None.
            block_size: Tokens per block, or (query tokens, key tokens).
            q_offset: Absolute position of the first query. Required for a "self" rule when q_len != kv_len.
            separate_full_blocks: Whether blocks without a hidden pair get lists of their own.
            compact: Whether the lists are stored only as wide as the longest one, on CUDA devices. If None they are
                where full ones take 256 MiB and torch's kernels are known to read both alike.

        Returns:
            BlockMask equal to eager ``torch.create_block_mask`` list for list.

        Raises:
            ValueError: Lengths, sizes or devices that do not fit the parameters; a device that holds no values.
            TypeError: A length or a size that is no int, a device that is none, a switch that is no bool.
        """
        q_len, kv_len = checks.lengths_of_call(self.name, q_len, kv_len)
        B, H = sizes_of_lists(self.name, B, H)
        checks.boolean(self.name, "separate_full_blocks", separate_full_blocks, "pass False for partial blocks alone")
        placed = self.place(q_len, kv_len, q_offset)
        return placed.placed_block_mask(q_len, kv_len, B, H, device, block_size, separate_full_blocks, compact)

    def placed_block_mask(
        self,
        q_len: int,
        kv_len: int,
        B: int | None = None,
        H: int | None = None,
        device: torch.device | str | None = None,
        block_size: int | tuple[int, int] = 128,
        separate_full_blocks: bool = True,
        compact: bool | None = None,
    ) -> BlockMask:
        """``block_mask`` of a placed mask, see ``place``."""
        mask = self.sized(B, H)
        own_batch, own_heads = mask.batch_and_heads()
        grid = Grid(
            q_len,
            kv_len,
            block_pair(block_size, self.name),
            B=_list_size(self.name, "B", B, own_batch),
            H=_list_size(self.name, "H", H, own_heads),
            device=self.resolve_device(device),
        )
        states = (lambda: mask.tile_states(grid)) if mask.has_own_tile_states() else None
        built = build_block_mask(
            mask.mask_mod(),
            grid,
            states=states,
            separate_full_blocks=separate_full_blocks,
            compact=compact_lists.are_wanted(self.name, compact, grid),
        )
        remember(built, mask.key())
        return built

    def place(self, q_len: int, kv_len: int, q_offset: Offset | None = None) -> Mask:
        """This mask with its first query at ``q_offset``, checked against the lengths: the *placed* mask of a call.

        What is placed takes no offset any more: its position 0 is the call's first query. Queries at negative
        positions see nothing.

        Raises:
            ValueError: A "self" rule with q_len != kv_len and no q_offset, or lengths the parameters do not describe.
        """
        offset = first_query(self.name, self.frame, q_len, kv_len, q_offset)
        placed = self if isinstance(offset, int) and offset == 0 else self.shift(q=offset)
        placed.check_lengths(q_len, kv_len)
        return placed

    def resolve_device(self, device: torch.device | str | None) -> torch.device:
        """``device``, else that of the tensors, else torch's default.

        Raises:
            ValueError: The tensors are elsewhere, or the device holds no values.
            TypeError: Something that is no device.
        """
        return checks.device_of_lists(self.name, self.device, device)

    def shift(self, q: Offset = 0, kv: Offset = 0) -> Mask:
        """The mask seen from first query position ``q`` and first key position ``kv``: i = q_idx + q, j = kv_idx + kv.

        A position below 0 sees nothing and is seen by nothing.

        Raises:
            ValueError: More than one number, or one beyond 2^31 - 1 on either side of 0.
            TypeError: An offset that is no integer.
        """
        moved_q, moved_kv = checks.offset(self.name, "q", q), checks.offset(self.name, "kv", kv)
        return frames.Shifted(self, moved_q, moved_kv)

    def per_document(self, cu_seqlens: Tensor, cu_seqlens_kv: Tensor | None = None) -> Mask:
        """The mask within each document, positions counted from the document's first token.

        Args:
            cu_seqlens: Document boundaries of the queries, integer [documents + 1], from 0 to the length.
            cu_seqlens_kv: Those of the keys if they are packed otherwise (cross attention); None = the same.
        """
        return frames.PerDocument(self, cu_seqlens, cu_seqlens_kv)

    @staticmethod
    def from_mask_mod(
        mask_mod: MaskMod, *, B: int | None = None, H: int | None = None, frame: Frame = "self", name: str = ""
    ) -> Mask:
        """A user's rule as a mask.

        Args:
            mask_mod: ``mask_mod(b, h, q_idx, kv_idx) -> bool``.
            B: Batch size, >= 1. If None and the rule reads b, ``attention`` takes q's and ``block_mask`` needs its own.
            H: Number of query heads, likewise for h.
            frame: What q_idx means, see ``Frame``.
            name: Name in messages; the function's own if empty.

        Raises:
            TypeError: A mask_mod that cannot be called, B or H that is no int.
            ValueError: B or H below 1, an unknown frame.
        """
        return user_rule.UserRule(mask_mod, B, H, frame, name or getattr(mask_mod, "__name__", "user_rule"))

    def __and__(self, other: Mask) -> Mask:
        return algebra.And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return algebra.Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __sub__(self, other: Mask) -> Mask:
        return algebra.And(self, algebra.Not(other)) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return algebra.Not(self)

    def __bool__(self) -> NoReturn:
        checks.fail(
            self.name,
            "a mask has no truth value",
            "`and`, `or`, `not` or `if` on a mask",
            "combine masks with & | ~ and -",
            TypeError,
        )


def joint_frame(*frames: Frame) -> Frame:
    """The frame of several rules together: "self" if any is, else "cross" if any is, else "keys"."""
    return "self" if "self" in frames else "cross" if "cross" in frames else "keys"


def first_query(name: str, frame: Frame, q_len: int, kv_len: int, q_offset: Offset | None) -> Offset:
    """The position of a call's first query: ``q_offset``, or 0 if there is none.

    Raises:
        ValueError: A "self" rule with q_len != kv_len and no q_offset.
        TypeError: A q_offset that is no integer.
    """
    if q_offset is not None:
        return checks.offset(name, "q_offset", q_offset)
    if frame == "self":
        checks.needs_offset(name, q_len, kv_len)
    return 0


def moved_end(end: int | None, offset: Offset) -> int | None:
    """One past the last position behind an offset; None if only the device knows it."""
    position = checks.known_offset(offset)
    return None if end is None or position is None else end + position


def sizes_of_lists(name: str, B: int | None, H: int | None) -> tuple[int | None, int | None]:
    """Batch size and number of heads that lists are asked for, as ints, or None where the parameters decide.

    Raises:
        ValueError: A size below 0.
        TypeError: A size that is no int.
    """
    remedy = "pass the size of q, or leave it out"
    batch, heads = (
        None if size is None else checks.static_integer(name, axis, size, 0, remedy)
        for axis, size in (("B", B), ("H", H))
    )
    return batch, heads


def _list_size(name: str, axis: str, asked: int | None, own: int) -> int:
    if asked is None or asked == own:
        return own
    if own != 1:
        checks.fail(
            name,
            f"{axis} must be {own}, the size of its parameters",
            asked,
            f"leave {axis} out, or pass parameters for {asked}",
        )
    return asked


# The compositions are masks themselves: their modules import this one, so it can name them only once Mask exists.
from attn_mods import algebra, frames, user_rule  # noqa: E402
