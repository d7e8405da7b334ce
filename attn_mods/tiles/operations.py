"""The one table of operation names: every spelling of a torch operation and the name the calculus knows it by."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

_SPELLINGS = {
    "add": "add __add__",
    "sub": "sub subtract __sub__",
    "mul": "mul multiply __mul__",
    "floor_divide": "floor_divide __floordiv__",
    "remainder": "remainder __mod__",
    "divide": "div divide true_divide __truediv__ __div__",
    "fmod": "fmod",
    "pow": "pow float_power __pow__",
    "lt": "lt less __lt__",
    "le": "le less_equal __le__",
    "gt": "gt greater __gt__",
    "ge": "ge greater_equal __ge__",
    "eq": "eq __eq__",
    "ne": "ne not_equal __ne__",
    "and": "bitwise_and __and__ __rand__",
    "or": "bitwise_or __or__ __ror__",
    "xor": "bitwise_xor __xor__ __rxor__",
    "not": "bitwise_not __invert__",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "logical_not": "logical_not",
    "shift_left": "bitwise_left_shift __lshift__",
    "shift_right": "bitwise_right_shift __rshift__",
    "neg": "neg negative __neg__",
    "same": "positive __pos__ clone contiguous detach",
    "abs": "abs absolute __abs__",
    "square": "square",
    "sign": "sign sgn",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc fix",
    "round": "round",
    "relu": "relu",
    "minimum": "minimum",
    "maximum": "maximum",
    "clamp": "clamp clip",
    "clamp_min": "clamp_min",
    "clamp_max": "clamp_max",
    "where": "where",
    "cast": "to type type_as bool byte char short int long half bfloat16 float double",
    "getitem": "__getitem__",
    "any": "any",
    "all": "all",
    "sum": "sum",
    "isin": "isin",
    "bucketize": "bucketize",
    "searchsorted": "searchsorted",
    "exp": "exp",
    "exp2": "exp2",
    "log": "log",
    "log2": "log2",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "isnan": "isnan",
    "isinf": "isinf",
    "isfinite": "isfinite",
    "reciprocal": "reciprocal",
}
CANONICAL = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings.split()}

# `5 - q` reaches torch as q.__rsub__(5): recorded as the plain operation with its operands in the order written.
REFLECTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "__radd__": ("add", operator.add),
    "__rsub__": ("sub", operator.sub),
    "rsub": ("sub", operator.sub),
    "__rmul__": ("mul", operator.mul),
    "__rfloordiv__": ("floor_divide", operator.floordiv),
    "__rmod__": ("remainder", operator.mod),
    "__rtruediv__": ("divide", operator.truediv),
    "__rdiv__": ("divide", operator.truediv),
    "__rpow__": ("pow", operator.pow),
    "__rlshift__": ("shift_left", operator.lshift),
    "__rrshift__": ("shift_right", operator.rshift),
}

# Operations that act on each element alone, so that broadcasting and torch's vmap compute the same.
ELEMENTWISE = frozenset(_SPELLINGS) - {"getitem", "any", "all", "sum", "isin", "bucketize", "searchsorted"}

# Operations on one element and a whole captured tensor, likewise.
ELEMENT_AND_TABLE = frozenset({"isin", "bucketize", "searchsorted"})

# Operations that only rearrange or select along the trailing axes of a value.
STRUCTURAL = frozenset(
    {
        "cat",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "getitem",
        "movedim",
        "narrow",
        "permute",
        "repeat_interleave",
        "reshape",
        "select",
        "squeeze",
        "stack",
        "swapaxes",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
    }
)

# Their result does not depend on the values of the operand, only on its dtype and shape.
CREATION = frozenset(
    {
        "full_like",
        "new_full",
        "new_ones",
        "new_tensor",
        "new_zeros",
        "ones_like",
        "zeros_like",
    }
)

METADATA = frozenset(
    {
        "__format__",
        "__hash__",
        "__len__",
        "__repr__",
        "__str__",
        "dim",
        "element_size",
        "is_complex",
        "is_contiguous",
        "is_floating_point",
        "is_signed",
        "ndimension",
        "nelement",
        "numel",
        "size",
        "stride",
    }
)
METADATA_PROPERTIES = frozenset(
    {
        "dtype",
        "grad",
        "is_leaf",
        "is_nested",
        "is_sparse",
        "itemsize",
        "layout",
        "names",
        "nbytes",
        "ndim",
        "requires_grad",
        "shape",
    }
)

# Reading a value in Python, which neither a tile nor torch's vmap has.
READS_A_VALUE = frozenset(
    {
        "__array__",
        "__bool__",
        "__complex__",
        "__contains__",
        "__float__",
        "__index__",
        "__int__",
        "allclose",
        "equal",
        "is_nonzero",
        "item",
        "nonzero",
        "numpy",
        "tolist",
    }
)

# Functions that draw random numbers, by torch's own names; the layers drop or jitter elements at random.
DRAWS = frozenset(
    {
        "_sample_dirichlet",
        "_standard_gamma",
        "alpha_dropout",
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy_",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "dropout_",
        "exponential_",
        "feature_alpha_dropout",
        "feature_dropout",
        "geometric_",
        "gumbel_softmax",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "rrelu",
        "rrelu_",
        "uniform_",
    }
)


def is_in_place(name: str) -> bool:
    """Whether a torch function name is that of an in-place operation."""
    if name in ("__setitem__", "__delitem__", "__set__"):
        return True
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__iter__", "__index__", "__int__")
    return name.endswith("_")
