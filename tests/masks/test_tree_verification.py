"""Trees against a walk from each node to its root, and errors."""

from __future__ import annotations

import pytest
import torch

from attn_mods.masks import TreeVerification


def path(parents: list[int], node: int) -> set[int]:
    nodes = set()
    while node >= 0:
        nodes.add(node)
        node = parents[node]
    return nodes


@pytest.mark.parametrize(
    "parents", [[-1], [-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 3], [-1, -1, 0, 1, 1, 3, 5], [-1, 0, 0, 0, 3, 3, 1]]
)
@pytest.mark.parametrize("prefix", [0, 5])
def test_a_node_sees_the_prefix_and_its_path_to_the_root(parents: list[int], prefix: int) -> None:
    nodes = len(parents)
    dense = TreeVerification.from_parents(parents, prefix).dense(nodes, prefix + nodes)
    for node in range(nodes):
        seen = set(range(prefix)) | {prefix + ancestor for ancestor in path(parents, node)}
        assert set(dense[node].nonzero().flatten().tolist()) == seen


def test_siblings_do_not_see_each_other_as_they_would_in_a_causal_mask() -> None:
    dense = TreeVerification.from_parents([-1, 0, 0], prefix=0).dense(3, 3)
    assert dense.int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_a_tree_and_a_prefix_for_each_sample() -> None:
    parents = torch.tensor([[-1, 0, 1], [-1, -1, 0]])
    mask = TreeVerification.from_parents(parents, torch.tensor([2, 1]))
    assert mask.batch_and_heads() == (2, 1)
    assert mask.dense(3, 5).int().tolist() == [
        [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]],
        [[[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0]]],
    ]


def test_a_tensor_prefix_moves_without_a_new_mask() -> None:
    prefix = torch.tensor(1)
    mask = TreeVerification.from_parents([-1, 0], prefix)
    rule, zero = mask.mask_mod(), torch.tensor(0)
    before = [bool(rule(zero, zero, torch.tensor(0), torch.tensor(j))) for j in range(5)]
    prefix.fill_(3)
    after = [bool(rule(zero, zero, torch.tensor(0), torch.tensor(j))) for j in range(5)]
    assert before == [True, True, False, False, False]
    assert after == [True, True, True, True, False]


@pytest.mark.parametrize("parents", [[0, 0], [-1, 2, 1], [-1, -2]])
def test_a_parent_must_be_an_earlier_node(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="must be an earlier node or -1"):
        TreeVerification.from_parents(parents, prefix=0)


@pytest.mark.parametrize(
    ("ancestors", "prefix", "error", "text"),
    [
        (torch.ones(2, 3, dtype=torch.bool), 0, ValueError, "ancestors must be square"),
        (torch.zeros(2, 2, dtype=torch.bool), 0, ValueError, "every node must see itself"),
        (torch.ones(2, 2), 0, TypeError, "ancestors must be a boolean tensor"),
        (torch.eye(2, dtype=torch.bool), -1, ValueError, "prefix must be >= 0"),
        (torch.eye(2, dtype=torch.bool).expand(2, 2, 2), torch.tensor([1, 2, 3]), ValueError, "must be 1 or equal"),
    ],
)
def test_errors(ancestors: torch.Tensor, prefix: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TreeVerification(ancestors, prefix)


def test_lengths() -> None:
    mask = TreeVerification.from_parents([-1, 0], prefix=6)
    with pytest.raises(ValueError, match=r"keys must end at prefix \+ nodes = 8, got 9"):
        mask.place(2, 9)
    with pytest.raises(ValueError, match=r"queries must end at or before node 2, got 8; .* leave q_offset out"):
        mask.place(2, 8, q_offset=6)
