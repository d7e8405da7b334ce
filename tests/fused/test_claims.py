"""The claims of a rule, evaluated on tensors: true on every tile, and as sharp as the calculus whose text they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods.fused.claims import Claims, Leaf, claims_of
from attn_mods.fused.form import Literal, Step, Unfit, form_of
from attn_mods.tiles import EMPTY, FULL, MIXED, UNKNOWN, Grid, States, tile_states
from attn_mods.tiles.graph import Graph, Node
from attn_mods.tiles.grid import BATCH, HEAD, KEY, QUERY, lead_axis, per_tile
from attn_mods.tiles.pointwise import evaluate
from attn_mods.tiles.rule import Rule
from attn_mods.tiles.trace import recorded
from tests.block_mask_equality import assert_sound, dense_truth
from tests.fused.written_rules import HARD_WITH_KERNELS, grid, written_rules
from tests.tiles.hard_rules import hard_case

WRITTEN = written_rules("cpu")


def claimed_states(rule: Rule, grid: Grid) -> States:
    """The states that the claims of a rule give its tiles."""
    graph, _ = recorded(rule, grid)
    assert graph is not None
    call = form_of(graph, grid)
    claims = claims_of(call.form)
    values: dict[str, Tensor] = dict(_ends(grid))
    for leaf in claims.leaves:
        values |= _parts(leaf, graph, grid)
    values |= {f"number{place}": torch.tensor(number) for place, number in enumerate(call.integers)}
    values |= {f"table{place}": table for place, table in enumerate(call.tables)}
    return States(_codes(claims, values, grid))


def _ends(grid: Grid) -> Iterator[tuple[str, Tensor]]:
    """First and last position of each tile, along its own axis of four."""
    for variable, side in ((QUERY, "q"), (KEY, "kv")):
        positions = grid.index_values(variable)
        yield f"{side}_first", per_tile(positions, variable, grid.block(variable), torch.amin)
        yield f"{side}_last", per_tile(positions, variable, grid.block(variable), torch.amax)


def _parts(leaf: Leaf, graph: Graph, grid: Grid) -> dict[str, Tensor]:
    """What the leaf kernel makes of a step, by its definition."""
    node = graph.nodes[leaf.place]
    index_values = {variable: grid.index_values(variable) for variable in (BATCH, HEAD, QUERY, KEY)}
    at = evaluate(_needed(node), [node], index_values)[node.number]
    if not leaf.variable:
        return {leaf.name("value"): at}
    block = grid.block(leaf.variable)
    reduce: dict[str, Callable[[], Tensor]] = {
        "low": lambda: per_tile(at.long(), leaf.variable, block, torch.amin),
        "high": lambda: per_tile(at.long(), leaf.variable, block, torch.amax),
        "every": lambda: per_tile(at, leaf.variable, block, torch.all),
        "some": lambda: per_tile(at, leaf.variable, block, torch.any),
        "connected": lambda: _connected(at, leaf.variable, block),
    }
    return {leaf.name(part): reduce[part]() for part in leaf.parts}


def _needed(node: Node) -> list[Node]:
    needed: dict[int, Node] = {node.number: node}
    for operand in node.operands():
        needed |= {each.number: each for each in _needed(operand)}
    return [needed[number] for number in sorted(needed)]


def _connected(values: Tensor, variable: int, block: int) -> Tensor:
    """Whether neighbours within a tile differ by one at most, tile for tile."""
    axis = lead_axis(variable)
    lines = values.movedim(axis, -1)
    tiles = [
        [all(abs(a - b) <= 1 for a, b in itertools.pairwise(part)) for part in _tiles(line.tolist(), block)]
        for line in lines.reshape(-1, lines.shape[-1])
    ]
    return torch.tensor(tiles).view(*lines.shape[:-1], -1).movedim(-1, axis)


def _tiles(line: list[int], block: int) -> list[list[int]]:
    return [line[start : start + block] for start in range(0, len(line), block)]


def _codes(claims: Claims, values: dict[str, Tensor], grid: Grid) -> Tensor:
    """Run the program."""
    results: dict[int, Any] = {}

    def value_of(argument: Any) -> Any:
        return results[argument.number] if isinstance(argument, Node) else argument

    for node in claims.nodes:
        if node.operation == "input":
            results[node.number] = values[node.arguments[0]]
        else:
            arguments = [value_of(argument) for argument in node.arguments]
            keywords = {name: value_of(argument) for name, argument in node.keywords.items()}
            results[node.number] = node.function(*arguments, **keywords)
    every, some, mixed = (
        torch.as_tensor(value_of(outcome)).expand(grid.B, grid.H, grid.rows, grid.columns)
        for outcome in (claims.every, claims.some, claims.mixed)
    )
    codes = torch.where(every, FULL, torch.where(some, torch.where(mixed, MIXED, UNKNOWN), EMPTY))
    return codes.to(torch.uint8)


def assert_claims_hold(rule: Rule, grid: Grid, name: str) -> Tensor:
    """Raise AssertionError unless every claim is true; returns the tiles of which the calculus knows more."""
    claimed = claimed_states(rule, grid).codes
    assert_sound(States(claimed), dense_truth(rule, grid.B, grid.H, grid.q_len, grid.kv_len), grid)
    known = tile_states(rule, grid).codes.expand_as(claimed)
    both = (claimed != UNKNOWN) & (known != UNKNOWN)
    assert torch.equal(claimed[both], known[both]), f"{name}: the claims contradict the calculus"
    return (claimed == UNKNOWN) & (known != UNKNOWN)


# The calculus reads the ends of positions and tables; the claims know signs of numbers, and of the rest assume bounds.
LOOSER = {
    "divisor of both positions",
    "divisor that moves, negative",
    "int32 sentinels in int64",
    "int32 sums beyond what is assumed",
    "quotient by a moving divisor",
    "quotient by a moving divisor, negative",
    "remainder by a head's divisor",
    "square of a difference",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_claims_of_written_rule(name: str) -> None:
    looser = assert_claims_hold(WRITTEN[name], grid("cpu"), name)
    assert bool(looser.any()) == (name in LOOSER)


@pytest.mark.parametrize("name", HARD_WITH_KERNELS)
def test_claims_of_hard_rule(name: str) -> None:
    case = hard_case(name)
    looser = assert_claims_hold(case.rule, Grid(case.q_len, case.kv_len, case.block_size, B=case.B, H=case.H), name)
    assert bool(looser.any()) == (name in LOOSER)


def test_overflow_of_a_table_makes_its_tiles_unknown() -> None:
    """What is assumed of a table is checked tile for tile: the other tiles keep their claims."""
    ends = torch.arange(64)
    ends[20] = 2**40

    def rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return ends[q_idx] - kv_idx >= 64

    codes = claimed_states(rule, Grid(64, 64, (16, 16))).codes
    assert (codes[0, 0, 1] == UNKNOWN).all()
    assert (codes[0, 0, [0, 2, 3]] == EMPTY).all()


@pytest.mark.parametrize("name", ["lookup", "isin", "bucketize", "searchsorted"])
def test_operation_on_a_table_at_both_positions_is_unfit(name: str) -> None:
    index = [Step("index", torch.int64, (Literal(variable, int),), (), variable) for variable in (QUERY, KEY)]
    both = Step(name, torch.bool, (), (), QUERY | KEY)
    with pytest.raises(Unfit, match=f"{name} at an index of both positions"):
        claims_of((*index, both))


def test_number_as_a_result_is_unfit() -> None:
    with pytest.raises(Unfit, match="no boolean"):
        claims_of((Step("index", torch.int64, (Literal(QUERY, int),), (), QUERY),))
