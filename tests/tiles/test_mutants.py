"""Mutants of the tile calculus: each is a mistake that is easy to make, and the rules written by hand must notice it.

A mutant is one change to the source of one module. The package is imported afresh with that change, beside the real
one, and put through the hard rules. A mutant that survives is a hole in the tests; one whose snippet is no longer in
the source, exactly once, has to be written anew for the code as it is now.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import attn_mods.block_mask
from tests.tiles.comparison import OPTIONS, Calculus, Expectation, compare
from tests.tiles.hard_rules import RULES, hard_case
from tests.tiles.rules import Case

PACKAGE = "attn_mods"


class Mutant(NamedTuple):
    """One change: in ``module``, ``old`` (which occurs once) becomes ``new``.

    ``sizes`` are internal sizes set for it to matter, ``option`` an argument of create_block_mask that torch must have.
    """

    module: str
    old: str
    new: str
    sizes: dict[str, Any] = {}  # noqa: RUF012 - never changed
    option: str = "BLOCK_SIZE"


SMALL_PARTS = {"tiles.refining._FEWEST": 1}

MUTANTS: dict[str, Mutant] = {
    # intervals
    "subtraction with its ends swapped": Mutant(
        "tiles.interval", "a.low - b.high, a.high - b.low", "a.low - b.low, a.high - b.high"
    ),
    "addition with its ends swapped": Mutant(
        "tiles.interval", "a.low + b.low, a.high + b.high", "a.low + b.high, a.high + b.low"
    ),
    "negation without swapping ends": Mutant("tiles.interval", "call, -a.high, -a.low", "call, -a.low, -a.high"),
    "absolute value of the upper end only": Mutant(
        "tiles.interval", "high = torch.maximum(-a.low, a.high)", "high = a.high"
    ),
    "absolute value that surely reaches zero": Mutant("tiles.interval", "either(a.connected, one_sided)", "True"),
    "overflow check removed": Mutant("tiles.interval", "bounds is None or not fits(bounds, dtype)", "False"),
    "minimum that forgets one side": Mutant(
        "tiles.interval", "torch.minimum(a.high, b.high), corner", "a.high, corner"
    ),
    "maximum that forgets one side": Mutant("tiles.interval", "torch.maximum(a.low, b.low), torch", "a.low, torch"),
    "where with its branches swapped": Mutant(
        "tiles.interval",
        "torch.where(yes, a.low, torch.where(no, b.low",
        "torch.where(yes, b.low, torch.where(no, a.low",
    ),
    "where that hopes for its first branch": Mutant(
        "tiles.interval", "b.high, torch.maximum(a.high, b.high)))", "b.high, a.high))"
    ),
    "product of the two lower ends": Mutant(
        "tiles.interval",
        "for x in (a.low, a.high) for y in (b.low, b.high)",
        "for x in (a.low, a.low) for y in (b.low, b.high)",
    ),
    "infinities allowed to meet": Mutant("tiles.interval", 'end.masked_fill(~finite, float("nan"))', "end"),
    # operands
    "wide scalars not checked against narrow dtypes": Mutant("tiles.joint", "or not numbers_fit(call, operands)", ""),
    "independence ignored": Mutant("tiles.joint", "both(a, b) if self.independent else False", "both(a, b)"),
    "every integer dtype holds every integer": Mutant(
        "tiles.values", "limits.min <= bounds[0] and bounds[1] <= limits.max", "True"
    ),
    "zero taken for true": Mutant(
        "tiles.values", "(value.low > 0) | (value.high < 0)", "(value.low >= 0) | (value.high < 0)"
    ),
    # comparisons
    "less than, off by one upward": Mutant("tiles.comparison", "x.high < y.low, ~", "x.high <= y.low, ~"),
    "less or equal, off by one upward": Mutant("tiles.comparison", "x.high <= y.low, ~", "x.high <= y.low + 1, ~"),
    "less or equal, off by one downward": Mutant("tiles.comparison", "~(x.low > y.high)", "~(x.low >= y.high)"),
    "less than, mixed where it is nowhere": Mutant("tiles.comparison", "~(x.low >= y.high)", "~(x.low > y.high)"),
    "comparison that trusts not-a-number": Mutant("tiles.comparison", "~(x.low >= y.high)", "(x.low < y.high)"),
    "greater read as less": Mutant(
        "tiles.comparison", 'if call.node.operation == "lt" else', 'if call.node.operation == "gt" else'
    ),
    "equality of ends that touch": Mutant(
        "tiles.comparison", "(x.high == y.low) & (x.low == y.high)", "(x.high == y.low) | (x.low == y.high)"
    ),
    "equality proved by attained ends": Mutant(
        "tiles.comparison", "both(attained, hit & ~every)", "both(attained, some & ~every)"
    ),
    # truths
    "both true where one is": Mutant(
        "tiles.boolean", "Truth(x.every & y.every, x.some & y.some", "Truth(x.every | y.every, x.some & y.some"
    ),
    "either true only where both are": Mutant("tiles.boolean", "x.some | y.some, mixed)", "x.some & y.some, mixed)"),
    "mixed or anything is mixed": Mutant("tiles.boolean", "both(x.mixed, ~y.some)", "x.mixed"),
    "mixed and anything is mixed": Mutant(
        "tiles.boolean", "both(x.mixed, y.every), both(y.mixed, x.every)", "x.mixed, y.mixed"
    ),
    "exclusive or that forgets the other": Mutant(
        "tiles.boolean", "every = (x.every & ~y.some) |", "every = x.every |"
    ),
    "negation without swapping planes": Mutant("tiles.boolean", "Truth(~a.some, ~a.every", "Truth(~a.every, ~a.some"),
    "choice with its branches swapped": Mutant(
        "tiles.boolean", "(c.every & x.every) | (~c.some & y.every)", "(c.every & y.every) | (~c.some & x.every)"
    ),
    "choice mixed with its condition": Mutant("tiles.boolean", "both(c.mixed, decides)", "c.mixed"),
    "unknown called mixed": Mutant("tiles.states", "MIXED if mixed else UNKNOWN", "MIXED"),
    # division
    "remainder that never starts anew": Mutant("tiles.division", "whole == _floor(a.high, divisor)", "whole == whole"),
    "remainder that never reaches its end": Mutant(
        "tiles.division", "torch.where(divisor > 0, divisor - 1, 0)", "torch.where(divisor > 0, divisor - 2, 0)"
    ),
    "quotient rounded to zero": Mutant(
        "tiles.division", "_quotient(call, a, b, _floor)", "_quotient(call, a, b, _truncate)"
    ),
    "quotient rounded down": Mutant(
        "tiles.division", "_quotient(call, a, b, _truncate)", "_quotient(call, a, b, _floor)"
    ),
    "truncated remainder that never starts anew": Mutant(
        "tiles.division", "whole == _truncate(a.high, divisor)", "whole == whole"
    ),
    "any mask taken for a run of low bits": Mutant(
        "tiles.division", "if mask.bounds[0] & (mask.bounds[0] + 1):", "if False:"
    ),
    "divisor that may be zero": Mutant("tiles.division", 'end.masked_fill(may_be_zero, float("nan"))', "end"),
    "right shift that does nothing": Mutant("tiles.division", "a.low >> count, a.high >> count", "a.low, a.high"),
    # lookups
    "negative index not wrapped": Mutant(
        "tiles.lookup", "wrapped_low = torch.where(high < 0, low + size,", "wrapped_low = torch.where(high < 0, low,"
    ),
    "index across zero not wrapped": Mutant(
        "tiles.lookup", "crosses = (low < 0) & (high >= 0)", "crosses = low > high"
    ),
    "last entry of a range left out": Mutant(
        "tiles.lookup", "indices[axis].high + 1 if upper", "indices[axis].high if upper"
    ),
    "second run of a range left out": Mutant("tiles.lookup", "low, high - length + 1", "low, low"),
    "two indices taken to move freely": Mutant("tiles.lookup", "len(moving) <= 1 or call.independent", "True"),
    "last member of a range left out": Mutant(
        "tiles.lookup",
        "torch.searchsorted(ordered, number.high, right=True)",
        "torch.searchsorted(ordered, number.high)",
    ),
    # leaves
    "steps of two taken for every integer": Mutant("tiles.leaves", "(step == 0) | (step == 1)", "step <= 10"),
    "chunks that all start at zero": Mutant(
        "tiles.leaves",
        "grid.index_values(variable, start, stop)",
        "grid.index_values(variable, 0, stop - start)",
        {"tiles.leaves._CHUNK": 1},
    ),
    # bands and coarse tiles
    "bands that all start at zero": Mutant(
        "tiles.calculus",
        "_rows(tensor, start, stop, grid.rows)",
        "_rows(tensor, 0, stop - start, grid.rows)",
        {"tiles.calculus._TILES_AT_ONCE": 1},
    ),
    "coarse tiles narrower than their blocks": Mutant(
        "tiles.calculus",
        "reduced(value.low, torch.amin)",
        "reduced(value.low, torch.amax)",
        {"tiles.calculus._COARSE_FROM": 0, "tiles.calculus._COARSE": 2},
    ),
    "coarse truth of one block": Mutant(
        "tiles.calculus",
        "reduced(value.every, torch.all)",
        "reduced(value.every, torch.any)",
        {"tiles.calculus._COARSE_FROM": 0, "tiles.calculus._COARSE": 2},
    ),
    "the first of several tables": Mutant("tiles.lookup", "index % table.shape[axis], 1", "0, 1"),
    "the larger for the smaller": Mutant("tiles.normalise", '("minimum", torch.minimum)', '("maximum", torch.maximum)'),
    # sampling and scanning
    "one kept sample proves mixed": Mutant("tiles.scanning", "kept.any(1) & ~kept.all(1)", "kept.any(1)"),
    "tiles transposed": Mutant("tiles.scanning", "((row, QUERY), (column, KEY))", "((column, QUERY), (row, KEY))"),
    "scan that never finds a full tile": Mutant("tiles.scanning", ".masked_fill(every, FULL)", ""),
    # undecided tiles by their parts
    "mixed part that drops nothing": Mutant("tiles.refining", "(codes == EMPTY) | (codes == MIXED)", "codes == EMPTY"),
    "mixed part that keeps nothing": Mutant("tiles.refining", "(codes == FULL) | (codes == MIXED)", "codes == FULL"),
    "tile settled by one part": Mutant(
        "tiles.refining", "~(verdicts.kept & verdicts.dropped)", "~(verdicts.kept | verdicts.dropped)"
    ),
    "parts of another column": Mutant(
        "tiles.refining", "part.column[:, None, None] * sides", "part.column[:, None, None]", SMALL_PARTS
    ),
    "parts of the first head": Mutant(
        "tiles.refining", "tiles.head[number] if codes.shape[1] > 1 else 0", "0", SMALL_PARTS
    ),
    "parts numbered from zero": Mutant(
        "tiles.refining",
        "(start + torch.arange(len(part)",
        "(0 + torch.arange(len(part)",
        {"tiles.refining._PARTS_AT_ONCE": 1, **SMALL_PARTS},
    ),
    # the recorded rule
    "reflected operands not swapped": Mutant(
        "tiles.normalise", "(arguments[1], arguments[0])", "(arguments[0], arguments[1])"
    ),
    "wide Python integers left to broadcasting": Mutant(
        "tiles.normalise", "isinstance(number, float) or all(", "True or all("
    ),
    "sum of certain truths only": Mutant(
        "tiles.trailing_axes", "reduce(value.every), reduce(value.some)", "reduce(value.every), reduce(value.every)"
    ),
    # lists
    "ragged row of tiles called full": Mutant("block_mask", "codes[:, :, rows:]", "codes[:, :, grid.rows :]"),
    "ragged column of tiles called full": Mutant("block_mask", "codes[..., columns:]", "codes[..., grid.columns :]"),
    "full blocks listed as partial too": Mutant("kernels.lists", "contiguous() == code", "contiguous() >= 1"),
    "lists of queries not transposed": Mutant(
        "block_mask", "for plane in (codes, by_column)", "for plane in (codes, codes)"
    ),
    "lists of queries for lists of keys": Mutant(
        "block_mask", 'PAIRS = ("kv", "q", "full_kv", "full_q")', 'PAIRS = ("kv", "q", "full_q", "full_kv")'
    ),
    "unseparated lists without full blocks": Mutant(
        "block_mask", "torch.where(codes == FULL, MIXED, codes)", "codes", option="separate_full_blocks"
    ),
    "write order ascending": Mutant(
        "block_mask", "if descending else", "if not descending else", option="compute_dq_write_order"
    ),
    "lists in descending order": Mutant("kernels.lists", "before - 1, count", "count - before, count"),
    "counts that leave out the last": Mutant("kernels.lists", "count[..., 0]", "count[..., 0] - 1"),
    "list rows in parts that overwrite each other": Mutant(
        "kernels.lists", "indices[:, :, here].scatter_", "indices[:, :, :step].scatter_", {"kernels.lists._CHUNK": 1}
    ),
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module of the package, and loads it from changed source."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = Loader(fullname, spec.origin, self.source)
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    """A source loader whose source is given."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.given = source

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.given, self.path, "exec", dont_inherit=True)


def mutated_source(mutant: Mutant) -> str:
    source = Path(str(source_folder()), *mutant.module.split(".")).with_suffix(".py").read_text()
    assert source.count(mutant.old) == 1, (
        f"{mutant.old!r} is {source.count(mutant.old)} times in {mutant.module}: write this mutant anew"
    )
    return source.replace(mutant.old, mutant.new)


def source_folder() -> Path:
    return Path(str(attn_mods.block_mask.__file__)).parent


@contextmanager
def fresh_package(finder: Finder | None, sizes: dict[str, Any]) -> Iterator[Calculus]:
    """The calculus imported anew, with the finder's change; the real modules are put back afterwards."""
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] == PACKAGE}
    for name in real:
        del sys.modules[name]
    package = types.ModuleType(PACKAGE)  # without the public names: only what create_block_mask needs is imported
    package.__path__ = [str(source_folder())]
    sys.modules[PACKAGE] = package
    if finder is not None:
        sys.meta_path.insert(0, finder)
    try:
        block_mask = importlib.import_module(f"{PACKAGE}.block_mask")
        tiles = importlib.import_module(f"{PACKAGE}.tiles")
        for name, value in sizes.items():
            module, constant = f"{PACKAGE}.{name}".rsplit(".", 1)
            assert hasattr(sys.modules[module], constant), f"{name} is gone: write this mutant anew"
            setattr(sys.modules[module], constant, value)
        yield Calculus(block_mask.create_block_mask, tiles.tile_states, tiles.Grid)
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.modules.update(real)


@functools.cache
def known(name: str) -> tuple[Case, Expectation]:
    """A hard rule and what torch makes of it: the same for every mutant."""
    case = hard_case(name)
    return case, Expectation.of(case)


def rules_that_notice(calculus: Calculus, enough: int) -> list[str]:
    """The first hard rules on which a calculus differs from torch, at most ``enough``."""
    noticed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about operations without a batching rule
        for name in RULES:
            case, expected = known(name)
            try:
                compare(case, calculus, expected)
            except AssertionError:
                noticed.append(name)
                if len(noticed) == enough:
                    break
    return noticed


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    if mutant.option not in OPTIONS:
        pytest.skip(f"torch {torch.__version__} cannot be asked for {mutant.option}")
    finder = Finder(f"{PACKAGE}.{mutant.module}", mutated_source(mutant))
    with fresh_package(finder, mutant.sizes) as calculus:
        noticed = rules_that_notice(calculus, enough=1)
    assert noticed, f"no hard rule notices this mutant of {mutant.module}: {mutant.old!r} -> {mutant.new!r}"


def test_the_calculus_itself_is_not_a_mutant() -> None:
    sizes = {key: value for mutant in MUTANTS.values() for key, value in mutant.sizes.items()}
    for chosen in ({}, sizes):
        with fresh_package(None, chosen) as calculus:
            assert calculus.Grid is not attn_mods.block_mask.Grid
            assert rules_that_notice(calculus, enough=5) == []


def test_enough_mutants() -> None:
    assert len(MUTANTS) >= 50
    assert len({(mutant.module, mutant.old, mutant.new) for mutant in MUTANTS.values()}) == len(MUTANTS)
