"""A block of queries sees the blocks of keys that were chosen for it.

Rule: keep (i, j) iff table[b, h, floor(i / q_block), floor(j / kv_block)].
From: the fine stage of VSA, the selection branch of NSA, Quest, SeerAttention: a cheap score picks the blocks, and this
is the mask of the exact attention that follows.
Traps: the mask says nothing about causality: combine it with ``& Causal()``. Selections per group of query heads (NSA)
must be repeated for each query head. Padding inside the blocks (VSA's edge tiles) is another mask to combine with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.masks._canvas import states_of_counts, tile_intervals
from attn_mods.tiles import Grid, States


@dataclass(frozen=True, eq=False)
class SelectedBlocks(Mask):
    """Keep (i, j) iff the key block of j was chosen for the query block of i.

    Args:
        table: Whether a query block sees a key block, bool [B|1, H|1, query blocks, key blocks]; H = query heads.
        q_block: Queries of a block, tokens; 1 chooses for each query (NSA, Quest).
        kv_block: Keys of a block, tokens.

    Shapes:
        kv_len fills the key blocks, of which the last may be shorter; the queries lie inside the query blocks. Queries
        are numbered as the table's rows are: give q_offset only if the table has rows for earlier queries too.

    Raises:
        ValueError: A block below 1, a table of 2^31 entries or more, or (at use) lengths that are not the table's.
        TypeError: A table that is not bool, a block that is not an int.

    References:
        Zhang et al. 2025 (VSA), arXiv 2505.13389; Yuan et al. 2025 (NSA), arXiv 2502.11089, section 3.3.2; Tang et al.
        2024 (Quest), arXiv 2406.10774; Gao et al. 2024 (SeerAttention), arXiv 2410.13276.
    """

    table: Tensor
    q_block: int
    kv_block: int

    frame = "cross"

    entry = Entry(
        title="Selected blocks",
        summary="A block of queries sees the blocks of keys that were chosen for it.",
        papers=(
            Paper("VSA: Faster Video Diffusion with Trainable Sparse Attention", "2505.13389", where="fine stage"),
            Paper("Native Sparse Attention", "2502.11089", where="section 3.3.2, token selection"),
            Paper("Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", "2406.10774"),
            Paper("SeerAttention: Learning Intrinsic Sparse Attention in Your LLMs", "2410.13276"),
        ),
        models=(Model("Wan 2.1 with VSA", field="topk"),),
        tags=frozenset({"sparse", "block", "video"}),
        picture="""
            xx......
            xx......
            xxxx....
            xxxx....
            ..xxxx..
            ..xxxx..
            ..xx..xx
            ..xx..xx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: _own_and_half(kv_len, device)),
            "nothing_chosen": Case(lambda q_len, kv_len, device: _random(kv_len, 32, 16, 0, device)),
            "all_chosen": Case(lambda q_len, kv_len, device: _random(kv_len, 16, 48, 999, device)),
            "every_query": Case(lambda q_len, kv_len, device: _random(kv_len, 1, 16, 3, device)),
            "per_head": Case(lambda q_len, kv_len, device: _random(kv_len, 64, 32, 3, device, batch=2, heads=3)),
            "heads_alone": Case(lambda q_len, kv_len, device: _random(kv_len, 64, 32, 3, device, heads=3)),
            "bench": Case(lambda q_len, kv_len, device: _random(kv_len, 64, 64, max(1, kv_len // 512), device)),
        },
        traps=(
            "Without & Causal() a chosen block shows its later tokens too.",
            "Scores per key head must be repeated for every query head that shares it.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass bool [B, H, query blocks, key blocks], or use SelectedBlocks.from_indices"
        table = checks.tensor(self.name, "table", self.table, ndim=(4,), kind="boolean", remedy=remedy)
        if table.numel() == 0:
            checks.fail(self.name, "table must not be empty", tuple(table.shape), remedy)
        if table.numel() >= 2**31:
            remedy = "choose larger blocks: kernels index tables with 32 bits"
            checks.fail(self.name, "table must have fewer than 2^31 entries", tuple(table.shape), remedy)
        for field in ("q_block", "kv_block"):
            checks.static_integer_field(self, field, 1, "pass the tokens of a block")

    @classmethod
    def from_indices(cls, indices: Tensor, q_block: int, kv_block: int, kv_len: int) -> SelectedBlocks:
        """From the numbers of the chosen key blocks.

        Args:
            indices: Key blocks 0 .. ceil(kv_len / kv_block) - 1 in any order, integer [B|1, H|1, query blocks, k];
                twice the same counts once, -1 stands for none.
            q_block: Queries of a block, tokens.
            kv_block: Keys of a block, tokens.
            kv_len: Number of keys.
        """
        for field, value in (("kv_len", kv_len), ("kv_block", kv_block), ("q_block", q_block)):
            checks.static_integer("selected_blocks", field, value, 1, "pass a number of tokens")
        blocks = -(-kv_len // kv_block)
        remedy = f"pass key blocks 0 .. {blocks - 1}, or -1 for none"
        checks.tensor("selected_blocks", "indices", indices, ndim=(4,), kind="integer", remedy=remedy)
        checks.integer("selected_blocks", "indices", indices, -1, remedy, ndim=(4,))
        if checks.values_can_be_read() and indices.numel() and int(indices.max()) >= blocks:
            checks.fail("selected_blocks", f"indices must be below {blocks}", int(indices.max()), remedy)
        table = torch.zeros(*indices.shape[:-1], blocks + 1, dtype=torch.bool, device=indices.device)
        return cls(table.scatter(-1, indices.long() % (blocks + 1), True)[..., :blocks], q_block, kv_block)

    def mask_mod(self) -> MaskMod:
        """The rule: one lookup in the table."""
        table, q_block, kv_block = self.table, self.q_block, self.kv_block
        batch, heads = self.batch_and_heads()

        def selected_blocks(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return table[b % batch, h % heads, q_idx // q_block, kv_idx // kv_block]

        return selected_blocks

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Each entry of the table as a block of tokens, bool [B|1, H|1, q_len, kv_len]."""
        q_block, kv_block = min(self.q_block, max(q_len, 1)), min(self.kv_block, max(kv_len, 1))
        tokens = self.table.repeat_interleave(q_block, 2).repeat_interleave(kv_block, 3)
        return tokens[:, :, :q_len, :kv_len]

    def batch_and_heads(self) -> tuple[int, int]:
        """Those of the table."""
        return self.table.shape[0], self.table.shape[1]

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The table has rows for all queries and exactly the columns of the keys."""
        rows, columns = self.table.shape[2:]
        if q_end is not None and q_end > rows * self.q_block:
            remedy = "pass a row for every block of queries, and q_offset only if earlier queries have rows too"
            checks.fail(self.name, f"the {rows} rows of table end at query {rows * self.q_block}", q_end, remedy)
        if kv_end is not None and -(-kv_end // self.kv_block) != columns:
            got = f"{columns} for {kv_end} keys in blocks of {self.kv_block}"
            remedy = "pass one column for every block of keys"
            checks.fail(self.name, f"table must have {-(-kv_end // self.kv_block)} columns", got, remedy)

    def tile_states(self, grid: Grid) -> States:
        """Exact, by counting the chosen entries a tile touches: quick, as the table is a new one at every step."""
        (q_first, q_end), (kv_first, kv_end) = tile_intervals(grid)
        rows = (q_first // self.q_block, -(-q_end // self.q_block))
        columns = (kv_first // self.kv_block, -(-kv_end // self.kv_block))
        sums = torch.nn.functional.pad(self.table.cumsum(3, dtype=torch.int32), (1, 0))
        by_column = sums[..., columns[1]] - sums[..., columns[0]]
        sums = torch.nn.functional.pad(by_column.cumsum(2, dtype=torch.int32), (0, 0, 1, 0))
        chosen = sums[:, :, rows[1]] - sums[:, :, rows[0]]
        return states_of_counts(chosen, (rows[1] - rows[0])[:, None] * (columns[1] - columns[0]))


def _own_and_half(length: int, device: str) -> SelectedBlocks:
    block = torch.arange(-(-length // 2), device=device)
    return SelectedBlocks.from_indices(torch.stack([block, block // 2], -1)[None, None], 2, 2, length)


def _random(
    length: int, q_block: int, kv_block: int, chosen: int, device: str, batch: int = 1, heads: int = 1
) -> SelectedBlocks:
    rows, columns = -(-length // q_block), -(-length // kv_block)
    scores = torch.rand(batch, heads, rows, columns, generator=torch.Generator().manual_seed(length))
    indices = scores.topk(min(chosen, columns), -1).indices.to(device)
    return SelectedBlocks.from_indices(indices, q_block, kv_block, length)
