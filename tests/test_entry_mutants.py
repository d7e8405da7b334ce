"""Every mutant of a rule, and of what a rule calls, differs from the dense form, or a reason says why nothing can.

Mutated are the method that makes the rule, and the functions and methods it reaches by name in its own module and in
the helper modules beside it (``masks/_*.py``). The dense form is never mutated, also where it calls the same function.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
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
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
OPPOSITES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "cummax": "cummin"}
LENGTHS = ((8, 8), (45, 45), (97, 97))
FORMS = ("flex", "flex_flash", "flex_float16", "flex_bfloat16")
"""Backends that a score may have a form of its own for."""

LONGEST_MUTANT_SECONDS = 5.0
"""Of work: some mutants loop for ever; every other one takes a fraction of a second."""
CLASSES = [item for item in (*masks.ALL, *scores.ALL) if inspect.isclass(item)]
WITHOUT_OPERATORS = {"full"}


@dataclass(frozen=True)
class Source:
    """A function of a rule, and the module whose names it sees."""

    module: ModuleType
    function: ast.FunctionDef
    is_method: bool

    @property
    def name(self) -> str:
        return self.function.name


def parsed(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def functions_of(module: ModuleType) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in parsed(module).body if isinstance(node, ast.FunctionDef)}


def methods_of(cls: type) -> dict[str, ast.FunctionDef]:
    tree = parsed(importlib.import_module(cls.__module__))
    (own,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    return {node.name: node for node in own.body if isinstance(node, ast.FunctionDef)}


def is_helper(module: object) -> bool:
    return isinstance(module, ModuleType) and module.__name__.startswith(("attn_mods.masks._", "attn_mods.scores._"))


def reachable(cls: type[Mask | Score]) -> list[Source]:
    """The method that makes the rule, and what it reaches by name."""
    own, methods = importlib.import_module(cls.__module__), methods_of(cls)
    start = "mask_mod" if issubclass(cls, Mask) else "score_mod"
    found: dict[tuple[str, str], Source] = {}
    waiting = [Source(own, methods[start], is_method=True)]
    while waiting:
        source = waiting.pop()
        key = source.module.__name__, source.name
        if key in found:
            continue
        found[key] = source
        for node in ast.walk(source.function):
            waiting += called(node, source.module, methods)
    return list(found.values())


def called(node: ast.AST, module: ModuleType, methods: dict[str, ast.FunctionDef]) -> Iterator[Source]:
    """The function a name in a module stands for, if it is one of the module, of the class or of a helper module."""
    if isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
        if inspect.isfunction(value) and (value.__module__ == module.__name__ or is_helper(inspect.getmodule(value))):
            home = importlib.import_module(value.__module__)
            yield Source(home, functions_of(home)[value.__name__], is_method=False)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == "self" and node.attr in methods:
            yield Source(module, methods[node.attr], is_method=True)
        helper = getattr(module, node.value.id, None)
        if is_helper(helper) and node.attr in functions_of(helper):
            yield Source(helper, functions_of(helper)[node.attr], is_method=False)


class WithoutAnnotations(ast.NodeTransformer):
    """Annotations hold operators that compute nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        self.generic_visit(node)
        return node


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node: one mutant each."""
    changed: Any = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for comparison in COMPARISONS.get(type(node.ops[0]), ()):
            changed = copy.deepcopy(node)
            changed.ops = [comparison()]
            yield changed
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for step in (1, -1):
            yield ast.Constant(node.value + step)
    elif isinstance(node, ast.BinOp):
        for operator in OPERATORS.get(type(node.op), ()):
            changed = copy.deepcopy(node)
            changed.op = operator()
            yield changed
    elif isinstance(node, ast.BoolOp):
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert, ast.USub)):
        yield node.operand
    elif isinstance(node, (ast.If, ast.IfExp)):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed
    elif isinstance(node, ast.Call):
        yield from replaced_calls(node)


def replaced_calls(node: ast.Call) -> Iterator[ast.AST]:
    """The opposite of a minimum or maximum, other bounds, no absolute value, the other branch."""
    changed: Any = copy.deepcopy(node)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in OPPOSITES:
        if isinstance(changed.func, ast.Attribute):
            changed.func.attr = OPPOSITES[name]
        else:
            changed.func.id = OPPOSITES[name]
        yield changed
    elif name in ("clamp", "where") and len(node.args) >= 2:
        changed.args[-2:] = reversed(changed.args[-2:])
        yield changed
    elif name == "clamp" and node.keywords:
        for keyword in changed.keywords:
            keyword.arg = OPPOSITES[keyword.arg]
        yield changed
        yield ast.Call(ast.Attribute(node.func.value, "clone", ast.Load()), [], [])  # type: ignore[attr-defined]
    elif name == "abs" and isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value


def shown(node: ast.AST) -> str:
    """The code of a node in one line; of an ``if``, its test."""
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)


@dataclass(frozen=True)
class Mutant:
    """One change of one function. ``name`` says which: the function, the expression and what it became."""

    name: str
    source: Source
    changed: ast.FunctionDef


def mutants_of(source: Source) -> Iterator[Mutant]:
    function = WithoutAnnotations().visit(copy.deepcopy(source.function))
    numbers: Counter[str] = Counter()
    for index, node in enumerate(ast.walk(function)):
        for replacement in replacements(node):
            name = f"{source.name}: {shown(node)} -> {shown(replacement)}"
            if isinstance(node, ast.Constant):
                name += f" in {shown(around(function, node))}"
            numbers[name] += 1
            if numbers[name] > 1:
                name += f" ({numbers[name]})"
            yield Mutant(name, source, put(function, index, replacement))


def operators(sources: list[Source]) -> int:
    """How many operators a rule is written with: each must give a mutant at least."""
    functions = [WithoutAnnotations().visit(copy.deepcopy(source.function)) for source in sources]
    kinds = (ast.BinOp, ast.Compare, ast.BoolOp)
    return sum(isinstance(node, kinds) for function in functions for node in ast.walk(function))


def around(function: ast.FunctionDef, inner: ast.AST) -> ast.AST:
    """The expression a constant stands in."""
    for node in ast.walk(function):
        if isinstance(node, ast.expr) and any(child is inner for child in ast.iter_child_nodes(node)):
            return node
    return inner


def put(function: ast.FunctionDef, index: int, replacement: ast.AST) -> ast.FunctionDef:
    """A copy of the function with the node of that place in a walk replaced."""
    changed = copy.deepcopy(function)
    target = list(ast.walk(changed))[index]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return ast.copy_location(copy.deepcopy(replacement), node) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Put().visit(changed))


def rule_maker(cls: type[Mask | Score], sources: list[Source], mutant: Mutant | None) -> Callable[[Any], list[Any]]:
    """The rules of a part, one of a mask and each form of a score, all functions made anew and one of them changed."""
    namespaces: dict[str, dict[str, Any]] = {}
    for source in sources:
        namespaces.setdefault(source.module.__name__, dict(vars(source.module)))
    methods: dict[str, Any] = {}
    for source in sources:
        function = mutant.changed if mutant is not None and mutant.source is source else source.function
        namespace = namespaces[source.module.__name__]
        made = compiled(function, namespace)
        if source.is_method:
            methods[source.name] = made
        else:
            namespace[source.name] = made
    for name, namespace in namespaces.items():
        for other, names in namespaces.items():
            replace_names(namespace, other, names, [source.name for source in sources if not source.is_method], name)
    changed_class = type(cls.__name__, (cls,), methods)

    def make(part: Any) -> list[Any]:
        copied = object.__new__(changed_class)
        copied.__dict__.update(part.__dict__)
        if isinstance(part, Mask):
            return [copied.mask_mod()]
        return list({rule.__code__: rule for rule in map(copied.score_mod, FORMS)}.values())

    return make


def compiled(function: ast.FunctionDef, namespace: dict[str, Any]) -> Any:
    alone = ast.Module([WithoutAnnotations().visit(copy.deepcopy(function))], [])
    outside: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(alone), f"<mutant of {function.name}>", "exec"), namespace, outside)
    return outside[function.name]


def replace_names(namespace: dict[str, Any], other: str, names: dict[str, Any], made: list[str], own: str) -> None:
    """Let one module see another's functions made anew, imported by module or by name."""
    if own == other:
        return
    real = importlib.import_module(other)
    for key, value in list(namespace.items()):
        if value is real:
            module = ModuleType(other)
            vars(module).update(names)
            namespace[key] = module
        elif inspect.isfunction(value) and value.__module__ == other and value.__name__ in made:
            namespace[key] = names[value.__name__]


def instances(case: Case) -> Iterator[tuple[Any, int, int]]:
    for q_len, kv_len in case.lengths or LENGTHS:
        yield case.make(q_len, kv_len, "cpu"), q_len, kv_len


@functools.cache
def truths(cls: type[Mask | Score]) -> list[tuple[Any, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """(part, dense form, indices, scores) of every case of an entry."""
    found = []
    for case in cls.entry.cases.values():
        for part, q_len, kv_len in instances(case):
            # a rule that is the same for every sample and head must be it at the second one too
            batch, heads = (2 if size == 1 else size for size in part.batch_and_heads())
            axes = tuple(torch.arange(n) for n in (batch, heads, q_len, kv_len))
            if isinstance(part, Score):
                scores_in = random_scores(batch, heads, q_len, kv_len)
                found.append((part, part.dense(scores_in, axes[2], axes[3]), axes, (scores_in,)))
            else:
                dense = part.dense(q_len, kv_len).expand(batch, heads, q_len, kv_len)
                found.append((part, dense, axes, ()))
    return found


def is_noticed(cls: type[Mask | Score], make_rules: Callable[[Any], list[Any]]) -> bool:
    """Whether the dense form differs from the mutant, or the mutant raises or does not end, on some case."""
    before = signal.signal(signal.SIGPROF, does_not_end)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_MUTANT_SECONDS)
    try:
        return differs(cls, make_rules)
    except MutantDoesNotEndError:
        return True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class MutantDoesNotEndError(BaseException):
    """Not an Exception, so that nothing on the way takes it for one of its own."""


def does_not_end(number: int, frame: FrameType | None) -> None:
    if frame is not None and (frame.f_globals.get("__name__") == "weakref" or frame.f_code.co_name == "__del__"):
        # What is raised while an object goes is lost, and reported as a failure: a little later, then.
        signal.setitimer(signal.ITIMER_PROF, 0.01)
        return
    raise MutantDoesNotEndError


def differs(cls: type[Mask | Score], make_rules: Callable[[Any], list[Any]]) -> bool:
    for part, expected, axes, more in truths(cls):
        try:
            found = [evaluate_everywhere(rule, *axes, *more) for rule in make_rules(part)]
        except Exception:
            return True
        if any(got.dtype != expected.dtype or not same(got, expected) for got in found):
            return True
    return False


def random_scores(batch: int, heads: int, q_len: int, kv_len: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, heads, q_len, kv_len, generator=generator, dtype=torch.float64)


def same(got: Tensor, expected: Tensor) -> bool:
    if expected.dtype == torch.bool:
        return torch.equal(got, expected)
    return torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.entry.name)
def test_mutants_are_noticed(cls: type[Mask | Score], record_property: Any) -> None:
    sources = reachable(cls)
    mutants = [mutant for source in sources for mutant in mutants_of(source)]
    with torch.no_grad():
        assert not is_noticed(cls, rule_maker(cls, sources, None)), "the rule made anew must equal the dense form"
        survivors = {mutant.name for mutant in mutants if not is_noticed(cls, rule_maker(cls, sources, mutant))}
    explained = EXPLAINED.get(cls.entry.name, {})
    record_property("entry mutants", len(mutants))
    record_property("entry mutants explained", len(survivors))
    assert survivors == set(explained), (
        f"{cls.entry.name}: survivors without a reason {sorted(survivors - set(explained))}, "
        f"reasons without a survivor {sorted(set(explained) - survivors)}"
    )
    assert all(reason for reason in explained.values())
    written = operators(sources)
    assert (written == 0) == (cls.entry.name in WITHOUT_OPERATORS)
    assert len(mutants) >= written
    assert len(mutants) - len(survivors) >= (written + 1) // 2


def test_names_are_unique() -> None:
    for cls in CLASSES:
        names = [mutant.name for source in reachable(cls) for mutant in mutants_of(source)]
        assert len(names) == len(set(names)), cls.entry.name


def test_what_a_rule_reaches() -> None:
    assert {source.name for source in reachable(masks.Neighborhood)} >= {"mask_mod", "_sees", "coordinates", "_axes"}
    assert "_published_slope" in {source.name for source in reachable(scores.Alibi)}


def test_reasons_name_entries() -> None:
    assert set(EXPLAINED) <= {cls.entry.name for cls in CLASSES}
