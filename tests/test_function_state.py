"""function_state: what may change under a cache, and what a kernel is compiled for, seen from the rule."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from attn_mods.backends.block_mask_cache import block_mask_for
from attn_mods.function_state import branch_signature, kernel_signature, leaves, rule_state
from attn_mods.mask import Mask


class TestRules:
    @staticmethod
    def rule(number: object) -> object:
        def inner(value: object) -> object:
            return value, number

        return lambda b, h, q_idx, kv_idx: inner(kv_idx)

    def test_integers_and_tensor_values_do_not_compile_anew(self) -> None:
        assert kernel_signature(self.rule(3)) == kernel_signature(self.rule(4))
        assert kernel_signature(self.rule(torch.tensor(3))) == kernel_signature(self.rule(torch.tensor(4)))

    @pytest.mark.parametrize("other", [3.5, True, "3", torch.tensor(3), torch.tensor([3]), (3, 4)], ids=repr)
    def test_other_kinds_do(self, other: object) -> None:
        assert kernel_signature(self.rule(3)) != kernel_signature(self.rule(other))

    def test_floats_are_static(self) -> None:
        assert kernel_signature(self.rule(2.5)) != kernel_signature(self.rule(3.5))

    def test_state_follows_values(self) -> None:
        table = torch.zeros(3)
        rule = self.rule(table)
        before = rule_state(rule)
        assert before == rule_state(self.rule(table))
        assert before != rule_state(self.rule(torch.zeros(3)))
        table.add_(1)
        assert before != rule_state(rule)
        assert rule_state(self.rule(3)) != rule_state(self.rule(4))

    def test_state_sees_globals_and_attributes(self) -> None:
        before = rule_state(reads_a_global)
        GLOBAL_TABLE.add_(1)
        assert before != rule_state(reads_a_global)
        callable_object = CallableRule(4)
        before = rule_state(callable_object)
        callable_object.window = 5
        assert before != rule_state(callable_object)

    def test_recursion_ends(self) -> None:
        def recursive(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> object:
            return recursive

        assert rule_state(recursive) == rule_state(recursive)


GLOBAL_TABLE = torch.zeros(4)


def reads_a_global(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return GLOBAL_TABLE[kv_idx] > 0


class CallableRule:
    def __init__(self, window: int) -> None:
        self.window = window

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx - q_idx < self.window


GLOBAL_SPACE = types.SimpleNamespace(window=3)
GLOBAL_DICT = {"window": 3}
GLOBAL_LIST = [3]
GLOBAL_WINDOW = torch.tensor(3)


class Settings:
    window = 3


class Doubled:
    window = 2


class Holder:
    """An object that is no function."""

    shared = 3

    def __init__(self, window: Any) -> None:
        self.window = window

    def double(self) -> Any:
        return Doubled.window * 2


def near(distance: Tensor, window: Any) -> Tensor:
    return (distance >= 0) & (distance < window)


def of_space(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return near(q_idx - kv_idx, GLOBAL_SPACE.window)


def of_dict(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return near(q_idx - kv_idx, GLOBAL_DICT["window"])


def of_list(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return near(q_idx - kv_idx, GLOBAL_LIST[0])


def of_class(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return near(q_idx - kv_idx, Settings.window)


def of_nested_function(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    def inner() -> Tensor:
        return near(q_idx - kv_idx, GLOBAL_WINDOW)

    return inner()


def of_object(holder: Any) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: near(q_idx - kv_idx, holder.window)


def of_class_attribute(holder: Any) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: near(q_idx - kv_idx, holder.shared)


def of_method(holder: Any) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: near(q_idx - kv_idx, holder.double())


def of_module(module: Any) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: near(q_idx - kv_idx, module.window)


def of_array(array: Any) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: near(q_idx - kv_idx, int(array[0]))


class WithOperators:
    """What it computes by is read where no name says so."""

    def __neg__(self) -> int:
        return -int(GLOBAL_SETTINGS["neg"])

    def __getitem__(self, index: int) -> int:
        return int(GLOBAL_SETTINGS["getitem"])

    def __rsub__(self, other: Tensor) -> Tensor:
        return other - int(GLOBAL_SETTINGS["rsub"])


GLOBAL_SETTINGS = {"neg": 3, "getitem": 3, "rsub": 300, "property": 3, "enum": 3, "metaclass": 3}


class Attributed:
    """May be given attributes."""


class NumberWithAttributes(int):
    """A number with attributes."""


class DictWithAttributes(dict[str, int]):
    """A dict with attributes."""


class ListWithAttributes(list[int]):
    """A list with attributes."""


class Pair(NamedTuple):
    first: int

    @property
    def window(self) -> int:
        return self.first + GLOBAL_SETTINGS["property"] - 3


class Level(enum.IntEnum):
    LOW = 3

    @property
    def window(self) -> int:
        return int(self) + GLOBAL_SETTINGS["enum"] - 3


class Meta(type):
    @property
    def window(cls) -> int:
        return GLOBAL_SETTINGS["metaclass"]


class OfMeta(metaclass=Meta):
    """Its window is its metaclass's."""


def given(value: Any) -> Any:
    """The value with an attribute."""
    value.window = 3
    return value


OPERATORS = WithOperators()
TABLE = given(torch.zeros(500, dtype=torch.int64))
GIVEN = {
    "number": given(NumberWithAttributes(3)),
    "subclass of dict": given(DictWithAttributes()),
    "subclass of list": given(ListWithAttributes()),
    "partial": given(functools.partial(near)),
}


def set_global(name: str, value: int) -> Callable[[], None]:
    return lambda: GLOBAL_SETTINGS.__setitem__(name, value)


HOLDER, ARRAY, SPACE = Holder(3), np.array([3]), types.ModuleType("settings")
SPACE.window = 3  # type: ignore[attr-defined]
CHANGES: dict[str, tuple[Callable[..., Tensor], Callable[[], Any]]] = {
    "namespace": (of_space, lambda: setattr(GLOBAL_SPACE, "window", 300)),
    "dict": (of_dict, lambda: GLOBAL_DICT.update(window=300)),
    "list": (of_list, lambda: GLOBAL_LIST.__setitem__(0, 300)),
    "class": (of_class, lambda: setattr(Settings, "window", 300)),
    "nested function": (of_nested_function, lambda: GLOBAL_WINDOW.fill_(300)),
    "object": (of_object(HOLDER), lambda: setattr(HOLDER, "window", 300)),
    "class attribute": (of_class_attribute(HOLDER), lambda: setattr(Holder, "shared", 300)),
    "method": (of_method(HOLDER), lambda: setattr(Doubled, "window", 150)),
    "module": (of_module(SPACE), lambda: setattr(SPACE, "window", 300)),
    "array": (of_array(ARRAY), lambda: ARRAY.fill(300)),
    "operator": (lambda b, h, q, k: near(q - k, 0 - -OPERATORS), set_global("neg", 300)),
    "reflected operator": (lambda b, h, q, k: ((q - k) - OPERATORS < 0) & (q >= k), set_global("rsub", 3)),
    "item of an object": (lambda b, h, q, k: near(q - k, OPERATORS[0]), set_global("getitem", 300)),
    "attribute of a tensor": (
        lambda b, h, q, k: near(TABLE[q] + q - k, TABLE.window),
        lambda: setattr(TABLE, "window", 300),
    ),
    "property of a named tuple": (of_object(Pair(3)), set_global("property", 300)),
    "property of an enum": (of_object(Level.LOW), set_global("enum", 300)),
    "property of a metaclass": (of_object(OfMeta), set_global("metaclass", 300)),
    **{
        f"attribute of a {name}": (of_object(value), functools.partial(setattr, value, "window", 300))
        for name, value in GIVEN.items()
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_lists_follow_state_that_lives_elsewhere(name: str) -> None:
    rule, change = CHANGES[name]
    mask = Mask.from_mask_mod(rule, name="near")
    before = block_mask_for(mask, 384, 384, torch.device("cpu"))
    state = rule_state(rule)
    change()
    assert state != rule_state(rule)
    after = block_mask_for(mask, 384, 384, torch.device("cpu"))
    fresh = mask.block_mask(384)
    assert torch.equal(after.kv_indices, fresh.kv_indices)
    assert torch.equal(after.kv_num_blocks, fresh.kv_num_blocks)
    assert not torch.equal(after.kv_num_blocks, before.kv_num_blocks)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "array"])
def test_unchanged_state_equals_itself(name: str) -> None:
    rule, _ = CHANGES[name]
    assert rule_state(rule) == rule_state(rule)
    hash(rule_state(rule))


def test_what_cannot_be_opened_equals_nothing() -> None:
    rule = of_array(np.array([3]))
    assert rule_state(rule) != rule_state(rule)
    assert kernel_signature(rule) == kernel_signature(of_array(np.array([4])))


class Unfriendly:
    """An object that raises what it likes where it is asked for what it has not."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getattr__(self, name: str) -> int:
        return {"other": 1}[name]


def test_an_object_that_cannot_be_asked_equals_nothing() -> None:
    rule = of_object(Unfriendly(3))
    assert rule_state(rule) != rule_state(rule)
    assert branch_signature(rule) is None


class TestBranches:
    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            (3, 3, True),
            (3, 4, False),
            (1, True, False),
            (torch.zeros(3), torch.ones(3), True),
            (torch.zeros(3), torch.zeros(4), False),
            (torch.zeros(3), torch.zeros(3, dtype=torch.int32), False),
            (Holder(3), Holder(3), True),
            (Holder(3), Holder(4), False),
        ],
        ids=lambda value: f"{type(value).__name__}",
    )
    def test_what_a_rule_may_branch_on(self, one: Any, other: Any, same: bool) -> None:
        first, second = (branch_signature(of_object(value)) for value in (one, other))
        assert first is not None and (first == second) == same

    def test_what_cannot_be_opened_has_none(self) -> None:
        assert branch_signature(of_array(np.array([3]))) is None

    def test_functions_of_torch_are_no_obstacle(self) -> None:
        where = torch.where
        assert branch_signature(lambda b, h, q_idx, kv_idx: where(q_idx > kv_idx, True, False)) is not None


def test_attributes_are_compiled_for_as_closures_are() -> None:
    assert kernel_signature(of_object(Holder(3))) == kernel_signature(of_object(Holder(4)))
    assert kernel_signature(of_object(Holder(0.5))) != kernel_signature(of_object(Holder(1.5)))


def test_leaves_are_found_inside_objects() -> None:
    table = torch.ones(3)
    assert any(leaf is table for leaf in leaves(of_object(Holder([table]))))


def test_torch_itself_is_not_opened() -> None:
    rule = lambda b, h, q_idx, kv_idx: torch.nn.functional.relu(torch.where(q_idx > 0, q_idx, torch.pi)) > 0  # noqa: E731
    assert rule_state(rule) == rule_state(rule)
    assert len(leaves(rule)) < 10


def _with_attribute() -> Any:
    def rule(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < rule.width  # type: ignore[attr-defined]

    rule.width = 3  # type: ignore[attr-defined]
    return rule


def test_an_attribute_of_the_function_itself() -> None:
    rule = _with_attribute()
    before = rule_state(rule)
    assert rule_state(rule) == before
    rule.width = 50
    assert rule_state(rule) != before


@functools.cache
def _remembered() -> Tensor:
    return torch.tensor(3)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: k < __import__("math").pi,
        lambda b, h, q, k: k < globals()["WIDTH"],
        lambda b, h, q, k: k < getattr(torch, "w" + "idth"),
        lambda b, h, q, k: k < _remembered(),
    ],
    ids=["import", "globals", "getattr", "lru_cache"],
)
def test_what_cannot_be_followed_equals_nothing(rule: Any) -> None:
    assert rule_state(rule) != rule_state(rule)
