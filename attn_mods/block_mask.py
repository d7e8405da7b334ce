"""Tile states to torch's BlockMask, and what the lists of one say.

A BlockMask holds up to four pairs of lists, of partial and of full blocks, by rows and by columns: for each row how
many blocks it lists, and their numbers, of which only that many count. What reads lists goes through this module, but
for the checks of entries, which take nothing from what they check.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.fused import available, fused_planes, kernels, lists_of_planes, planes_of_call, recall
from attn_mods.kernels.lists import block_lists, compacted
from attn_mods.provenance import remember
from attn_mods.tiles import FULL, MIXED, Grid, States, analyse, resolve
from attn_mods.tiles.grid import block_pair
from attn_mods.tiles.rule import Rule, check_rule, rule_name
from attn_mods.tiles.trace import recorded

PAIRS = ("kv", "q", "full_kv", "full_q")
LIST_NAMES = tuple(f"{pair}_{part}" for pair in PAIRS for part in ("num_blocks", "indices"))

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_of_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which a user's torch.compile does not trace.

    What builds lists decides by values in Python: traced, it would be cut into pieces, compiled anew for the next mask.
    """
    reason = "attn_mods builds a BlockMask outside of graphs: build it before the compiled function and pass it in"
    untraced: Callable[Arguments, Result] = torch.compiler.disable(function, reason=reason)  # type: ignore[no-untyped-call]
    return untraced


def create_block_mask(
    mask_mod: Rule,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The BlockMask that torch's eager function of this name returns, without evaluating Q_LEN x KV_LEN positions.

    Under ``torch.compile`` it is a graph break; with ``fullgraph=True`` torch refuses it.

    Args:
        mask_mod: Rule mask_mod(b, h, q_idx, kv_idx) -> 0-d bool tensor, True = the query sees the key.
        B: Batch size; 1 if None.
        H: Number of query heads; 1 if None.
        Q_LEN: Number of queries.
        KV_LEN: Number of keys; need not equal Q_LEN.
        device: Where the lists are made; the current accelerator, else the CPU, if None.
        BLOCK_SIZE: Positions per block, or (query positions, key positions).
        _compile: Deprecated in torch and without effect here.
        separate_full_blocks: Whether blocks without a hidden pair get lists of their own.
        compute_dq_write_order: Whether to add the order in which a deterministic backward adds up dQ (torch 2.13).
        dq_kv_order: That order: True for descending key blocks, False for ascending.

    Returns:
        BlockMask equal to torch's list for list. A lookup out of range raises only where it is evaluated: not in tiles
        that the calculus decides.

    Raises:
        RuleError: If mask_mod is no mask_mod (a TypeError).
        ValueError: If the options or sizes are not valid, dq_kv_order is no bool (torch's error for it), or the device
            cannot be used here.
        TypeError: If a size is no int, another switch no bool, the device none.
        NotImplementedError: If the installed torch has no dQ write order.
        Exception: Whatever mask_mod raises at real positions. An integer divided by a tensor's 0 raises where torch
            does, on a CPU; on a GPU its value is undefined, here as there.
    """
    if _compile:
        warnings.warn(
            "create_block_mask: _compile is deprecated and has no effect",
            DeprecationWarning,
            stacklevel=2,
        )
    # A function of its own: torch.compile(create_block_mask) looks through a decorator of create_block_mask itself.
    return _create_block_mask(
        mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, separate_full_blocks, compute_dq_write_order, dq_kv_order
    )


@outside_of_graphs
def _create_block_mask(
    mask_mod: Rule,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None,
    BLOCK_SIZE: int | tuple[int, int],
    separate_full_blocks: bool,
    compute_dq_write_order: bool,
    dq_kv_order: bool,
) -> BlockMask:
    name = "create_block_mask"
    if not isinstance(dq_kv_order, bool):
        remedy = "pass True for descending key blocks, False for ascending"
        checks.fail(name, "dq_kv_order must be a bool", checks.describe(dq_kv_order), remedy)
    checks.boolean(name, "separate_full_blocks", separate_full_blocks, "pass False for partial blocks alone")
    checks.boolean(name, "compute_dq_write_order", compute_dq_write_order, "pass True for a deterministic backward")
    if compute_dq_write_order and "dq_write_order" not in inspect.signature(BlockMask.__init__).parameters:
        remedy = "leave compute_dq_write_order out, or install torch 2.13"
        error, got = NotImplementedError, f"compute_dq_write_order with torch {torch.__version__}"
        checks.fail(name, "the dQ write order needs a torch that has it", got, remedy, error)
    check_rule(mask_mod)
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    where = checks.usable_device(name, device)
    sizes = {"Q_LEN": Q_LEN, "KV_LEN": KV_LEN, "B": 1 if B is None else B, "H": 1 if H is None else H}
    remedy = "pass a number of tokens, samples or heads"
    q_len, kv_len, batch, heads = (checks.static_integer(name, key, n, 0, remedy) for key, n in sizes.items())
    grid = Grid(q_len, kv_len, block_pair(BLOCK_SIZE, name), batch, heads, where)
    block_mask = build_block_mask(mask_mod, grid, separate_full_blocks=separate_full_blocks)
    if compute_dq_write_order:
        _add_dq_write_order(block_mask, dq_kv_order)
    remember(block_mask)
    return block_mask


def build_block_mask(
    rule: Rule,
    grid: Grid,
    *,
    states: Callable[[], States] | None = None,
    separate_full_blocks: bool = True,
    compact: bool = False,
) -> BlockMask:
    """The exact BlockMask of a rule on a grid.

    On a GPU the rule's own kernels make the lists, if they are compiled already; else the calculus does.

    Args:
        rule: The mask_mod; the BlockMask keeps this very object.
        grid: Lengths, block size, batch, heads, device. The rule is evaluated at the grid's absolute positions.
        states: Gives claims about the tiles that hold, if there are better ones than the calculus has; UNKNOWN tiles
            are settled by evaluating the rule. Kernels do not ask for them.
        separate_full_blocks: Whether blocks without a hidden pair get lists of their own.
        compact: Whether the lists are stored only as wide as the longest one.

    Raises:
        RuleError: If the rule is no mask_mod.
        ValueError: If the states do not fit the grid.
        IndexError: If a lookup leaves its table.
        Exception: Whatever the rule raises at real positions.
    """
    lists = _fused_lists(rule, grid, separate_full_blocks, compact)
    if lists is None:
        lists = _calculated_lists(rule, grid, states, separate_full_blocks)
        kernels.start()
        if compact:
            lists[1::4] = compacted(lists[::4], lists[1::4])
            lists[3::4] = compacted(lists[2::4], lists[3::4])
    return from_lists(lists, rule, (grid.q_len, grid.kv_len), grid.block_size)


def _fused_lists(rule: Rule, grid: Grid, separate_full_blocks: bool, compact: bool) -> list[Tensor] | None:
    """The lists by kernels, or None where there are none, or not yet."""
    if not available(torch.device(grid.device)):
        return None
    check_rule(rule)
    call = recall(rule, grid)
    if call is not None:
        planes = planes_of_call(call, grid, rule_name(rule), separate_full_blocks)
    else:
        graph, _ = recorded(rule, grid)
        planes = None if graph is None else fused_planes(graph, grid, rule_name(rule), separate_full_blocks)
    return None if planes is None else lists_of_planes(planes, grid, separate_full_blocks, compact)


def _calculated_lists(
    rule: Rule, grid: Grid, states: Callable[[], States] | None, separate_full_blocks: bool
) -> list[Tensor]:
    """The lists by the calculus."""
    analysis = analyse(rule, grid) if states is None else resolve(rule, grid, states())
    codes = _listed_codes(analysis.states.codes, grid, separate_full_blocks)
    by_column = codes.transpose(-2, -1)
    lists: list[Tensor] = []
    for code in (MIXED, FULL) if separate_full_blocks else (MIXED,):
        for plane in (codes, by_column):
            lists += _lists(plane, code, grid)
    return lists


def from_lists(lists: Sequence[Tensor], rule: Rule, lengths: tuple[int, int], block_size: tuple[int, int]) -> BlockMask:
    """The BlockMask of lists in the order of ``LIST_NAMES``, those of full blocks left out if there are none."""
    present: list[Tensor | None] = [*lists, *[None] * (len(LIST_NAMES) - len(lists))]
    keywords: dict[str, Any] = dict(zip(LIST_NAMES, present, strict=True))
    return BlockMask(seq_lengths=lengths, BLOCK_SIZE=block_size, mask_mod=rule, **keywords)


def lists_of(block_mask: BlockMask) -> list[Tensor]:
    """The lists that a BlockMask has, in the order of ``LIST_NAMES``."""
    lists = (getattr(block_mask, name) for name in LIST_NAMES)
    return [each for each in lists if each is not None]


def list_shapes(
    batch: int, heads: int, lengths: tuple[int, int], block_size: int, separate_full_blocks: bool
) -> list[tuple[int, ...]]:
    """The shapes of the lists, in the order of ``LIST_NAMES``."""
    rows, columns = (-(-length // block_size) for length in lengths)
    by_rows = (batch, heads, rows), (batch, heads, rows, columns)
    by_columns = (batch, heads, columns), (batch, heads, columns, rows)
    return [*by_rows, *by_columns] * (2 if separate_full_blocks else 1)


def list_bytes(block_mask: BlockMask) -> int:
    """Memory of the lists; what several of them share counts once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in lists_of(block_mask)}
    return sum(storages.values())


def has_full_blocks(block_mask: BlockMask) -> bool:
    """Whether full blocks have lists of their own."""
    return block_mask.full_kv_num_blocks is not None


def batch_and_heads_of(block_mask: BlockMask) -> tuple[int, int]:
    """(B, H) of the lists."""
    return block_mask.kv_num_blocks.shape[0], block_mask.kv_num_blocks.shape[1]


def device_of(block_mask: BlockMask) -> torch.device:
    """Where the lists are."""
    return block_mask.kv_num_blocks.device


def block_tables(block_mask: BlockMask) -> tuple[Tensor, Tensor]:
    """Which blocks are partial and which full, bool [B, H, q blocks, kv blocks] each."""
    partial = listed_blocks(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is None or block_mask.full_kv_indices is None:
        return partial, torch.zeros_like(partial)
    return partial, listed_blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)


def same_blocks(first: BlockMask, second: BlockMask) -> bool:
    """Whether two BlockMasks list the same blocks, in whatever order; lists that one of them lacks are not compared."""
    for pair in PAIRS:
        mine, theirs = (
            (getattr(each, f"{pair}_num_blocks"), getattr(each, f"{pair}_indices")) for each in (first, second)
        )
        if mine[1] is None or theirs[1] is None:
            continue
        if not torch.equal(mine[0], theirs[0]) or not torch.equal(listed_blocks(*mine), listed_blocks(*theirs)):
            return False
    return True


def listed_blocks(counts: Tensor, indices: Tensor) -> Tensor:
    """Which blocks each row lists.

    Args:
        counts: How many, integer [B, H, rows].
        indices: Their numbers, integer [B, H, rows, columns]; what stands behind the count is not read.

    Returns:
        bool [B, H, rows, columns].
    """
    columns = indices.shape[-1]
    counted = torch.arange(columns, device=indices.device) < counts[..., None]
    blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return blocks.scatter(-1, indices.long().where(counted, columns), True)[..., :columns]


def _listed_codes(codes: Tensor, grid: Grid, separate_full_blocks: bool) -> Tensor:
    """EMPTY, MIXED and FULL as the lists tell them apart: a ragged tile is no full block, kernels read those whole."""
    if not separate_full_blocks:
        return torch.where(codes == FULL, MIXED, codes)
    rows, columns = grid.q_len // grid.block_size[0], grid.kv_len // grid.block_size[1]
    if (rows, columns) == (grid.rows, grid.columns):
        return codes
    codes = codes.clone()
    for edge in (codes[:, :, rows:], codes[..., columns:]):
        edge.masked_fill_(edge == FULL, MIXED)
    return codes


def _lists(codes: Tensor, code: int, grid: Grid) -> tuple[Tensor, Tensor]:
    """Lists of all batches and heads; those the rule does not depend on share one storage."""
    counts, indices = block_lists(codes, code)
    return counts.expand(grid.B, grid.H, -1), indices.expand(grid.B, grid.H, -1, -1)


def _add_dq_write_order(block_mask: BlockMask, descending: bool) -> None:
    """Add, for each block of the q lists, how many blocks of its query row are added to dQ before it."""
    mask: Any = block_mask
    partial, full = block_tables(block_mask)
    listed = partial | full
    upto = listed.cumsum(-1, dtype=torch.int32)
    rank = upto[..., -1:] - upto if descending else upto - listed.int()
    by_column = rank.transpose(-2, -1)
    mask.dq_write_order = by_column.gather(-1, mask.q_indices.long())
    mask.dq_write_order_full = None if mask.full_q_indices is None else by_column.gather(-1, mask.full_q_indices.long())
    mask.dq_kv_order = None
    mask.dq_kv_order_spt = descending
