"""What a backend is: one way to compute attention that says what it can do before it does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.recipe import Recipe
from attn_mods.sink import apply_sink


@dataclass(frozen=True)
class Shapes:
    """Sizes of q [batch, q_heads, q_len, head_dim], k [.., kv_heads, kv_len, head_dim] and v [.., value_dim]."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Shapes:
        """The sizes of these tensors."""
        return cls(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])


@dataclass(frozen=True)
class Needs:
    """What a call asks for besides the output.

    Attributes:
        input_gradients: Gradients of q, k or v.
        parameter_gradients: Gradients of the recipe's tensors, the sink's among them.
        lse: The log-sum-exp of each row.
        invariant: Bits that do not depend on padding or batch size.
        kernel_options: Options handed to the kernel.
        options_on: Which of them are on in which pass, with fwd_ or bwd_ before their names.
        block_mask: A BlockMask was handed in.
        compiling: The call is being traced by the user's own torch.compile.
    """

    input_gradients: bool = False
    parameter_gradients: bool = False
    lse: bool = False
    invariant: bool = False
    kernel_options: bool = False
    options_on: frozenset[str] = frozenset()
    block_mask: bool = False
    compiling: bool = False

    @property
    def training(self) -> bool:
        """Whether any gradient is asked for."""
        return self.input_gradients or self.parameter_gradients


@dataclass(frozen=True)
class Reason:
    """Why a backend does not compute a call.

    Attributes:
        text: The reason, without the backend's name.
        mendable: Whether the caller can lift it: then "auto" raises it instead of taking a slower backend.
        package: What would have to be installed, if that is all there is against it.
    """

    text: str
    mendable: bool = False
    package: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Call:
    """One checked call of ``attention``: tensors of one dtype, the recipe at its offset."""

    q: Tensor
    k: Tensor
    v: Tensor
    recipe: Recipe
    needs: Needs
    block_mask: BlockMask | None = None
    kernel_options: Mapping[str, Any] | None = None

    @property
    def shapes(self) -> Shapes:
        """Sizes of q, k and v."""
        return Shapes.of(self.q, self.k, self.v)

    def finished(self, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What is returned of a kernel's out and lse: with the sink applied where there is lse, and lse only if asked.

        A kernel that took the sink itself gives no lse.
        """
        if self.recipe.sink is not None and lse is not None:
            out = apply_sink(out, lse, self.recipe.sink)
        return out, lse if self.needs.lse else None


Runner = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""q, k and v to out and lse, as ``Backend.run`` gives them."""


class Backend(ABC):
    """One way to compute attention.

    Attributes:
        name: Its row in ``explain`` and the value of ``backend=``.
    """

    name: ClassVar[str]

    def supports(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """None if it computes exactly this, else why not. Touches no tensor values."""
        refused = None if recipe.score is None else recipe.score.unsupported_by(self.name)
        return self.limits(recipe, shapes, dtype, device, needs) if refused is None else Reason(refused)

    @abstractmethod
    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """Why this backend does not compute a recipe whose score has nothing against it; None if it does."""

    @abstractmethod
    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Compute a supported call.

        Returns:
            out [B, Hq, q_len, Dv] in the dtype of q, and lse [B, Hq, q_len] if the call needs it.
        """

    def prepared(self, call: Call) -> Runner:
        """``run`` for calls that differ from a supported one in the values of q, k and v alone, of which it keeps none.

        It is used while no tensor of the recipe changes.
        """
        others = call.recipe, call.needs, call.block_mask, call.kernel_options
        return lambda q, k, v: self.run(Call(q, k, v, *others))

    def is_dense(self, recipe: Recipe, shapes: Shapes) -> bool:
        """Whether it would hold a q_len x kv_len matrix: "auto" takes such a backend last."""
        return False
