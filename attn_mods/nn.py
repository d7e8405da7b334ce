"""Attention as a module, and the keys and values it remembers while decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import checks
from attn_mods.dispatch import attention
from attn_mods.mask import Mask, Offset
from attn_mods.recipe import Recipe
from attn_mods.score import Score


class KVCache:
    """Keys and values of one layer, in memory allocated once.

    Args:
        batch: Number of sequences.
        num_kv_heads: Key heads.
        max_length: Most positions it can hold.
        head_dim: Size of a head.
        device: Where it is.
        dtype: What it holds.

    Attributes:
        length: Positions held so far: the absolute position of the next query.

    Raises:
        ValueError: A size below 1, a device that cannot be used here.
        TypeError: A size that is no int, a dtype that is not floating point.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        max_length: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "max_length": max_length, "head_dim": head_dim}
        shape = [checks.static_integer("KVCache", label, size, 1, "pass a size") for label, size in sizes.items()]
        where = _checked_device("KVCache", device)
        _check_dtype("KVCache", dtype)
        self.keys = torch.zeros(shape, device=where, dtype=dtype)
        self.values = torch.zeros(shape, device=where, dtype=dtype)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new positions: ``write`` and ``advance``; takes, returns and raises what ``write`` does."""
        held = self.write(k, v)
        self.advance(k.shape[2])
        return held

    def advance(self, new: int) -> None:
        """Count this many written positions as held.

        Raises:
            ValueError: Fewer than none, or more than it has room for.
            TypeError: A number that is no int.
        """
        new = checks.static_integer("KVCache", "new", new, 0, "pass how many positions were written")
        self._check_room(self.length + new)
        self.length += new

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new positions behind those held, without counting them: what fails later leaves the cache as it was.

        Args:
            k: Their keys [batch, num_kv_heads, new, head_dim].
            v: Their values, the same shape.

        Returns:
            Keys and values of all positions so far and the new ones, views of the cache.

        Raises:
            ValueError: No room, another shape or device, or keys that a gradient is to flow through.
            TypeError: Another dtype, or no tensors.
        """
        for label, value in (("k", k), ("v", v)):
            _check_tensor("KVCache", label, value)
        if k.ndim != 4:
            remedy = "pass [batch, num_kv_heads, new, head_dim]"
            checks.fail("KVCache", "k and v must have 4 dimensions", tuple(k.shape), remedy)
        end = self.length + k.shape[2]
        held = self.keys.shape
        self._check_room(end)
        if k.shape != v.shape or (k.shape[0], k.shape[1], k.shape[3]) != (held[0], held[1], held[3]):
            shapes = f"k {tuple(k.shape)}, v {tuple(v.shape)}"
            checks.fail("KVCache", f"k and v must fit the cache {tuple(held)}", shapes, "make one for this batch")
        if k.device != self.keys.device or v.device != self.keys.device:
            remedy = f'make the cache with device="{k.device}"'
            checks.fail("KVCache", f"k and v must be on {self.keys.device}", f"{k.device}, {v.device}", remedy)
        if k.dtype != self.keys.dtype or v.dtype != self.keys.dtype:
            remedy = "make the cache with dtype=..., under autocast that of autocast"
            checks.fail("KVCache", f"k and v must be {self.keys.dtype}", f"{k.dtype}, {v.dtype}", remedy, TypeError)
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            remedy = "decode under torch.no_grad(), or train without a cache"
            checks.fail("KVCache", "no gradient flows through a cache", "keys that require grad", remedy)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reset(self) -> None:
        """Forget all positions."""
        self.length = 0

    def _check_room(self, end: int) -> None:
        room = self.keys.shape[2]
        if end > room:
            checks.fail("KVCache", f"it holds at most {room} positions", end, "make it with a larger max_length")


class Attention(nn.Module):
    """Multi-head attention as a recipe says, with grouped key heads, offsets and a cache.

    Float tensors of the recipe become parameters, the others buffers: ``score.bias`` of ``recipe.tensors()`` is named
    ``recipe__score__bias``. A module converted to a half type converts these too: slopes and tables lose digits there,
    so prefer autocast.

    Args:
        embed_dim: Size of the input and the output.
        num_heads: Query heads Hq.
        num_kv_heads: Key heads Hkv, of which Hq is a multiple; Hq if None.
        recipe: What to compute; a Mask or Score is taken as a Recipe, None is plain attention.
        bias: Whether the projections have a bias.
        head_dim: Size of a head; embed_dim / num_heads if None.
        device: Where the parameters are made; the recipe's tensors move there.
        dtype: Dtype of the projections.

    Shapes:
        Input [B, q_len, embed_dim], context [B, kv_len, embed_dim], output [B, q_len, embed_dim].

    Raises:
        ValueError: Sizes below 1 or that do not divide, a device that cannot be used here.
        TypeError: A size that is no int, a dtype that is not floating point, something that is no recipe.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        recipe: Recipe | Mask | Score | None = None,
        bias: bool = True,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim = _checked_size("embed_dim", embed_dim, "pass the size of the input")
        num_heads = _checked_size("num_heads", num_heads, "pass the number of query heads")
        if num_kv_heads is None:
            num_kv_heads = num_heads
        num_kv_heads = _checked_size("num_kv_heads", num_kv_heads, "pass the number of key heads, or leave it out")
        if num_heads % num_kv_heads:
            remedy = "choose num_kv_heads that divides num_heads"
            got = f"{num_heads} and {num_kv_heads}"
            checks.fail("nn.Attention", "num_heads must be a multiple of num_kv_heads", got, remedy)
        if head_dim is None and embed_dim % num_heads:
            remedy = "pass head_dim"
            got = f"{embed_dim} and {num_heads}"
            checks.fail("nn.Attention", "embed_dim must be a multiple of num_heads", got, remedy)
        head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = _checked_size("head_dim", head_dim, "pass the size of a head, or leave it out")
        checks.boolean("nn.Attention", "bias", bias, "pass False for projections without one")
        _check_dtype("nn.Attention", dtype)
        recipe = Recipe.of(recipe, "nn.Attention")
        made: dict[str, Any] = {"bias": bias, "device": _checked_device("nn.Attention", device), "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, **made)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, **made)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, **made)
        self.o_proj = nn.Linear(num_heads * self.head_dim, embed_dim, **made)
        self._hold(recipe, self.q_proj.weight.device if device is not None else None)

    def _hold(self, recipe: Recipe, device: torch.device | None) -> None:
        """Register the recipe's tensors and keep the recipe that refers to them."""
        learnable = recipe.learnable()
        for name, tensor in recipe.tensors().items():
            moved = tensor if device is None else tensor.to(device)
            if name not in learnable:
                self.register_buffer(_attribute(name), moved)
            elif isinstance(moved, nn.Parameter):
                self.register_parameter(_attribute(name), moved)
            else:
                self.register_parameter(_attribute(name), nn.Parameter(moved.detach().clone()))
        self._recipe = recipe

    @property
    def recipe(self) -> Recipe:
        """The recipe on the module's present parameters and buffers."""
        held = self._recipe.tensors()
        present = {name: getattr(self, _attribute(name)) for name in held}
        if any(present[name] is not held[name] for name in held):
            self._recipe = self._recipe.with_tensors(present)
        return self._recipe

    def forward(
        self,
        x: Tensor,
        *,
        context: Tensor | None = None,
        q_offset: Offset | None = None,
        cache: KVCache | None = None,
        block_mask: BlockMask | None = None,
    ) -> Tensor:
        """Attend from x to x, to context, or to all that the cache has seen.

        Args:
            x: Where the queries come from, [B, q_len, embed_dim].
            context: Where keys and values come from, [B, kv_len, embed_dim]; x if None.
            q_offset: Absolute position of the first query. With a cache it is the cache's length.
            cache: Keys and values so far; those of x are appended.
            block_mask: The recipe's BlockMask, if it is at hand; see ``attn_mods.attention``.

        Returns:
            [B, q_len, embed_dim].

        Raises:
            ValueError: x or context of other dimensions, a cache together with a context or a q_offset, and as
                ``attn_mods.attention``. The cache is then as it was.
            TypeError: x or context of another dtype, something that is no tensor or no cache.
        """
        source = x if context is None else context
        self._check_input("x", x, self.q_proj)
        self._check_input("context", source, self.k_proj)
        if cache is not None and not isinstance(cache, KVCache):
            remedy = "make one with new_cache(batch, max_length)"
            checks.fail("nn.Attention", "cache must be a KVCache", checks.describe(cache), remedy, TypeError)
        q = self._heads(self.q_proj(x), self.num_heads)
        k = self._heads(self.k_proj(source), self.num_kv_heads)
        v = self._heads(self.v_proj(source), self.num_kv_heads)
        if cache is not None:
            if context is not None or q_offset is not None:
                got = "a context" if context is not None else "a q_offset"
                remedy = "leave it out: the cache counts the positions of x"
                checks.fail("nn.Attention", "a cache goes with neither context nor q_offset", got, remedy)
            q_offset = cache.length
            k, v = cache.write(k, v)
        out = attention(q, k, v, self.recipe, q_offset=q_offset, block_mask=block_mask)
        if cache is not None:
            cache.advance(x.shape[1])
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # a tensor

    def new_cache(self, batch: int, max_length: int) -> KVCache:
        """An empty cache for this layer, on its device and in its dtype."""
        weight = self.k_proj.weight
        return KVCache(batch, self.num_kv_heads, max_length, self.head_dim, device=weight.device, dtype=weight.dtype)

    def extra_repr(self) -> str:
        """Sizes and the name of the recipe."""
        sizes = f"{self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
        return f"{sizes}, head_dim={self.head_dim}, recipe={self._recipe.name}"

    def _check_input(self, label: str, value: object, projection: nn.Module) -> None:
        tensor = _check_tensor("nn.Attention", label, value)
        if tensor.ndim != 3 or tensor.shape[2] != self.embed_dim:
            remedy = "unsqueeze the missing dimension, or project it to embed_dim"
            rule = f"{label} must be [B, length, embed_dim] with embed_dim = {self.embed_dim}"
            checks.fail("nn.Attention", rule, tuple(tensor.shape), remedy)
        if type(projection) is not nn.Linear:  # another layer, such as a quantised one, has inputs of its own
            return
        weight = projection.weight
        if tensor.device != weight.device:
            remedy = "move it, or the module, with .to"
            checks.fail("nn.Attention", f"{label} must be on {weight.device} as the module is", tensor.device, remedy)
        if tensor.dtype != weight.dtype and not torch.is_autocast_enabled(tensor.device.type):
            remedy = "convert it with .to, or run under autocast"
            checks.fail("nn.Attention", f"{label} must be {weight.dtype}", tensor.dtype, remedy, TypeError)

    def _heads(self, projected: Tensor, heads: int) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, heads, self.head_dim).transpose(1, 2)


def _attribute(name: str) -> str:
    """Torch allows no dot in the name of a parameter."""
    return "recipe__" + name.replace(".", "__")


def _checked_size(field: str, value: object, remedy: str) -> int:
    return checks.static_integer("nn.Attention", field, value, 1, remedy)


def _checked_device(name: str, device: torch.device | str | None) -> torch.device | None:
    """The device; that without values too, where modules are described before they are made."""
    return None if device is None else checks.usable_device(name, device, meta=True)


def _check_dtype(name: str, dtype: object) -> None:
    if dtype is not None and dtype not in checks.FLOAT_DTYPES:
        remedy = "pass torch.float32, torch.bfloat16, torch.float16 or torch.float64"
        checks.fail(name, "dtype must be floating point", checks.describe(dtype), remedy, TypeError)


def _check_tensor(name: str, label: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        remedy = "convert it with torch.as_tensor"
        checks.fail(name, f"{label} must be a tensor", type(value).__name__, remedy, TypeError)
    return value
