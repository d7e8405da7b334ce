"""Every comparison flipped or shifted, every constant moved by one: the dense form notices, or a reason is listed."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mods import masks, scores
from attn_mods.entry import Case
from attn_mods.evaluation import evaluate_everywhere
from attn_mods.mask import Mask
from attn_mods.score import Score
from tests.explained_mutants import EXPLAINED

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
LENGTHS = ((8, 8), (45, 45), (97, 97))
CLASSES = [item for item in (*masks.ALL, *scores.ALL) if inspect.isclass(item)]


def rule_function(tree: ast.Module) -> ast.FunctionDef:
    """The method of the entry's class that makes the rule."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("mask_mod", "score_mod"):
            return node
    raise AssertionError("the file has neither mask_mod nor score_mod")


def mutations(function: ast.FunctionDef) -> Iterator[tuple[str, Callable[[ast.AST], None], int]]:
    """(description, change, index of the node in a walk) of every mutant of a function."""
    for index, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            for operator in COMPARISONS[type(node.ops[0])]:
                changed = copy.deepcopy(node)
                changed.ops[0] = operator()
                yield describe(function, node, changed), functools.partial(set_comparison, operator=operator), index
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            for step in (1, -1):
                moved = ast.copy_location(ast.Constant(node.value + step), node)
                yield describe(function, node, moved), functools.partial(set_constant, value=node.value + step), index
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            operator = SIGNS[type(node.op)]
            changed = copy.deepcopy(node)
            changed.op = operator()
            yield describe(function, node, changed), functools.partial(set_operator, operator=operator), index


def describe(function: ast.FunctionDef, node: ast.expr, changed: ast.expr) -> str:
    return f"line {node.lineno - function.lineno}: {ast.unparse(node)} -> {ast.unparse(changed)}"


def set_comparison(node: ast.AST, operator: type[ast.cmpop]) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = operator()


def set_constant(node: ast.AST, value: float) -> None:
    assert isinstance(node, ast.Constant)
    node.value = value


def set_operator(node: ast.AST, operator: type[ast.operator]) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = operator()


def mutants(cls: type[Mask | Score]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """(description, mutated mask_mod or score_mod) of an entry."""
    module = importlib.import_module(cls.__module__)
    source = inspect.getsource(module)
    for description, change, index in mutations(rule_function(ast.parse(source))):
        tree = ast.parse(source)
        function = rule_function(tree)
        change(list(ast.walk(function))[index])
        alone = ast.fix_missing_locations(ast.Module([function], []))
        namespace = dict(vars(module))
        exec(compile(alone, f"<mutant of {cls.__name__}: {description}>", "exec"), namespace)
        yield description, namespace[function.name]


def instances(case: Case) -> Iterator[tuple[Any, int, int]]:
    for q_len, kv_len in case.lengths or LENGTHS:
        yield case.make(q_len, kv_len, "cpu"), q_len, kv_len


def is_noticed(cls: type[Mask | Score], make_rule: Callable[..., Any]) -> bool:
    """Whether the dense form differs from the mutant, or the mutant raises, on some case."""
    for case in cls.entry.cases.values():
        for part, q_len, kv_len in instances(case):
            expected, batch, heads = truth(part, q_len, kv_len)
            axes = (torch.arange(n) for n in (batch, heads, q_len, kv_len))
            try:
                got = evaluate_everywhere(make_rule(part), *axes, *arguments(part, batch, heads, q_len, kv_len))
            except Exception:
                return True
            if got.dtype != expected.dtype or not same(got, expected):
                return True
    return False


def arguments(part: Mask | Score, batch: int, heads: int, q_len: int, kv_len: int) -> tuple[Tensor, ...]:
    return () if isinstance(part, Mask) else (random_scores(batch, heads, q_len, kv_len),)


def random_scores(batch: int, heads: int, q_len: int, kv_len: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, heads, q_len, kv_len, generator=generator, dtype=torch.float64)


def truth(part: Mask | Score, q_len: int, kv_len: int) -> tuple[Tensor, int, int]:
    batch, heads = part.batch_and_heads()
    if isinstance(part, Score):
        scores_in = random_scores(batch, heads, q_len, kv_len)
        with torch.no_grad():
            return part.dense(scores_in, torch.arange(q_len), torch.arange(kv_len)), batch, heads
    dense = part.dense(q_len, kv_len)
    return dense.expand(batch, heads, q_len, kv_len), batch, heads


def same(got: Tensor, expected: Tensor) -> bool:
    if expected.dtype == torch.bool:
        return torch.equal(got, expected)
    return torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.entry.name)
def test_mutants_are_noticed(cls: type[Mask | Score], record_property: Any) -> None:
    made, survivors = 0, set()
    with torch.no_grad():
        for description, make_rule in mutants(cls):
            made += 1
            if not is_noticed(cls, make_rule):
                survivors.add(description)
    record_property("entry mutants", made)
    record_property("entry mutants explained", len(survivors))
    explained = EXPLAINED.get(cls.entry.name, {})
    assert survivors == set(explained), (
        f"{cls.entry.name}: survivors without a reason {sorted(survivors - set(explained))}, "
        f"reasons without a survivor {sorted(set(explained) - survivors)}"
    )
    assert all(reason for reason in explained.values())


def test_an_unmutated_rule_is_not_noticed() -> None:
    assert not is_noticed(masks.SlidingWindow, masks.SlidingWindow.mask_mod)
    assert not is_noticed(scores.Softcap, scores.Softcap.score_mod)


def test_reasons_name_entries() -> None:
    assert set(EXPLAINED) <= {cls.entry.name for cls in CLASSES}
