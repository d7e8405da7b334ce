"""A drafted token sees the whole prefix and its own ancestors in the tree of drafts.

Rule: queries are the n tree nodes, keys the P prefix tokens and then the nodes; keep (i, j) iff j < P, or node j - P is
node i or one of its ancestors.
From: SpecInfer, Medusa and EAGLE: one forward pass verifies all branches of a tree of guesses.
Traps: i counts nodes, not positions of the sequence, so there is no q_offset; the position id of a node is P + depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.captured_tables import inside
from attn_mods.entry import Case, Entry, Model, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, size

_FEW = ((8, 12), (17, 150), (100, 384))
# one node to more than two tiles of 128; 0, 127, 128, 129, 300 and other tokens before
_TREES = ((1, 1), (8, 12), (5, 132), (64, 64), (45, 173), (129, 429), (300, 427), (130, 259))


@dataclass(frozen=True, eq=False)
class TreeVerification(Mask):
    """Keep (i, j) iff j < prefix or ancestors[i, j - prefix].

    Args:
        ancestors: Whether node j is node i or one of its ancestors, bool [n, n] or [B, n, n].
        prefix: Tokens before the tree, P. An int is compiled into the kernel, a 0-d integer tensor changes from step to
            step without recompiling, an integer tensor [B] gives each sample its own. Keys behind the tree are hidden.

    Shapes:
        q_len is n (or less, the first nodes), kv_len is P + n, and may be more with a tensor prefix (a cache).

    Raises:
        ValueError: Ancestors that are not square or miss a node itself, a negative prefix, or (at use) other lengths.
        TypeError: Ancestors that are not bool, a prefix that is neither an int nor an integer tensor.

    References:
        Miao et al. 2023, arXiv 2305.09781; Cai et al. 2024, arXiv 2401.10774, section 2.1.2; Li et al. 2024,
        arXiv 2401.15077.
    """

    ancestors: Tensor
    prefix: Number

    frame = "cross"

    entry = Entry(
        title="Tree verification",
        summary="A drafted token sees the whole prefix and its own ancestors in the tree of drafts.",
        papers=(
            Paper("SpecInfer: Accelerating LLM Serving with Tree-based Speculative Inference", "2305.09781"),
            Paper("Medusa: Simple LLM Inference Acceleration Framework", "2401.10774", "section 2.1.2, tree attention"),
            Paper("EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", "2401.15077"),
        ),
        models=(Model("Medusa", field="medusa_choices"), Model("EAGLE", field="tree_choices")),
        tags=frozenset({"decoding", "speculative", "tree"}),
        picture="""
            xxxxx.......
            xxxxxx......
            xxxxx.x.....
            xxxxxx.x....
            xxxxxx..x...
            xxxxx.x..x..
            xxxxx.x...x.
            xxxxxx.x...x
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: _case(q_len, kv_len - q_len, 2, device), _FEW),
            "chain": Case(lambda q_len, kv_len, device: _case(q_len, kv_len - q_len, 1, device), _TREES),
            "in_a_longer_cache": Case(lambda q_len, kv_len, device: _in_cache(q_len, kv_len - q_len, device), _TREES),
            "per_sample": Case(lambda q_len, kv_len, device: _samples(q_len, kv_len - q_len, device), _TREES),
            "prefixes": Case(lambda q_len, kv_len, device: _prefixes(q_len, kv_len - q_len, device), _TREES),
            "one_tree": Case(lambda q_len, kv_len, device: _one_tree(_prefixes(q_len, kv_len - q_len, device)), _TREES),
            "bench": Case(
                lambda q_len, kv_len, device: _case(q_len, kv_len - q_len, 4, device),
                ((64, 4096), (64, 16384), *_TREES),
            ),
        },
        traps=(
            "A causal mask over the nodes lets siblings see each other: the accepted branch would be another one.",
            "Positions (rotary embedding, ALiBi) of a node are the prefix plus its depth, not plus its number.",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "use TreeVerification.from_parents(parents, prefix)"
        ancestors = checks.tensor(self.name, "ancestors", self.ancestors, ndim=(2, 3), kind="boolean", remedy=remedy)
        if ancestors.shape[-1] != ancestors.shape[-2]:
            checks.fail(self.name, "ancestors must be square", tuple(ancestors.shape), remedy)
        if ancestors.numel() == 0:
            checks.fail(self.name, "ancestors must hold at least one node", tuple(ancestors.shape), remedy)
        if checks.values_can_be_read() and not bool(ancestors.diagonal(dim1=-2, dim2=-1).all()):
            checks.fail(self.name, "every node must see itself", "a diagonal of ancestors with False", remedy)
        checks.integer_field(self, "prefix", 0, "pass the tokens before the tree", ndim=(0, 1))
        self.batch_and_heads()

    @property
    def nodes(self) -> int:
        """Nodes of a tree, n."""
        return self.ancestors.shape[-1]

    @property
    def trees(self) -> int | None:
        """Trees given, None for one that serves every sample."""
        return self.ancestors.shape[0] if self.ancestors.ndim == 3 else None

    @classmethod
    def from_parents(
        cls, parents: Sequence[int] | Tensor, prefix: Number, device: torch.device | str | None = None
    ) -> TreeVerification:
        """From the number of each node's parent, -1 for a root: a sequence, or an integer tensor [n] or [B, n].

        Raises:
            ValueError: A parent that is not an earlier node; sort the nodes by depth.
        """
        remedy = "sort the nodes by depth and give roots -1"
        numbers = checks.integers("tree_verification", "parents", parents, remedy, ndim=(1, 2), device=device)
        trees = [_ancestors_or_self(listed, remedy) for listed in numbers.reshape(-1, numbers.shape[-1]).tolist()]
        ancestors = torch.stack(trees) if numbers.ndim == 2 else trees[0]
        return cls(ancestors.to(numbers.device), prefix)

    def mask_mod(self) -> MaskMod:
        """The rule j < P or ancestors[i, j - P]."""
        ancestors, prefix = self.ancestors, captured(self.prefix)
        nodes, trees = self.nodes, self.trees

        def tree_verification(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            node = kv_idx - at(prefix, b)
            column = inside(node, nodes)
            ancestor = ancestors[q_idx, column] if trees is None else ancestors[b % trees, q_idx, column]
            return (node < 0) | ((node < nodes) & ancestor)

        return tree_verification

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """Columns of ones and then the table of ancestors, bool [q_len, kv_len] or [B, 1, q_len, kv_len]."""

        def beside_prefix(prefix: int) -> Tensor:
            shape = (*self.ancestors.shape[:-1], min(prefix, kv_len))
            ones = torch.ones(shape, dtype=torch.bool, device=self.ancestors.device)
            behind = torch.zeros(*self.ancestors.shape[:-1], kv_len, dtype=torch.bool, device=self.ancestors.device)
            return torch.cat([ones, self.ancestors, behind], -1)[..., :q_len, :kv_len]

        batch, _ = self.batch_and_heads()
        rows = [beside_prefix(prefix) for prefix in torch.as_tensor(self.prefix).reshape(-1).tolist()]
        if self.trees is None:
            return rows[0] if len(rows) == 1 else torch.stack(rows)[:, None]
        return torch.stack([rows[n % len(rows)][n % self.trees] for n in range(batch)])[:, None]

    def batch_and_heads(self) -> tuple[int, int]:
        """One batch row per tree or prefix."""
        return checks.broadcast(self.name, "batch size", self.trees or 1, size(self.name, "B", self.prefix)), 1

    def check_lengths(self, q_end: int | None, kv_end: int | None) -> None:
        """The queries are nodes; the keys are the prefix and all nodes."""
        nodes = self.nodes
        remedy = "queries are the nodes of the tree: leave q_offset out and make q_len the number of nodes"
        checks.queries_end(self.name, nodes, q_end, remedy, unit="node")
        if isinstance(self.prefix, int) and kv_end is not None and kv_end != self.prefix + nodes:
            remedy = "put the prefix and then all nodes into the keys, or pass a tensor prefix for a longer cache"
            checks.fail(self.name, f"the keys must end at prefix + nodes = {self.prefix + nodes}", kv_end, remedy)


def _ancestors_or_self(parents: list[int], remedy: str) -> Tensor:
    table = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            rule = f"the parent of node {node} must be an earlier node or -1"
            checks.fail("tree_verification", rule, parent, remedy)
        if parent >= 0:
            table[node] |= table[parent]
    return table


def _case(nodes: int, prefix: Number, children: int, device: str) -> TreeVerification:
    return TreeVerification.from_parents([(node - 1) // children for node in range(nodes)], prefix, device)


def _in_cache(nodes: int, room: int, device: str) -> TreeVerification:
    return _case(nodes, torch.tensor(2 * room // 3, device=device), 3, device)


def _prefixes(nodes: int, prefix: int, device: str) -> TreeVerification:
    return _case(nodes, torch.tensor([prefix, prefix // 2, 0], device=device), 3, device)


def _one_tree(mask: TreeVerification) -> TreeVerification:
    return TreeVerification(mask.ancestors[None], mask.prefix)


def _samples(nodes: int, prefix: int, device: str) -> TreeVerification:
    parents = torch.stack([(torch.arange(nodes) - roots) // roots for roots in (2, 5)])
    return TreeVerification.from_parents(parents, torch.tensor([prefix, prefix // 2], device=device), device)
