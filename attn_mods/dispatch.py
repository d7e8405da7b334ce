"""attention() and explain(): check a call, choose an exact backend, run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods import backends, checks
from attn_mods.backends import Backend, Call, Needs, Reason, Shapes
from attn_mods.backends.structure_options import options_on
from attn_mods.bare_block_mask import Listed
from attn_mods.block_mask_check import check_bare_block_mask, check_block_mask
from attn_mods.call_checks import check_call, check_device, check_kernel_options, check_sizes, check_tensors
from attn_mods.explanation import NOT_MEASURED, Explanation, Row
from attn_mods.mask import Mask, Offset
from attn_mods.preflight import check_user_functions
from attn_mods.prepared_calls import keep, kept, signature_of
from attn_mods.recipe import Recipe
from attn_mods.score import Score
from attn_mods.tuning import Measured, table_for
from attn_mods.tuning.typical import Typical, look_up


class CallOptions(TypedDict, total=False):
    """What a call of ``attention`` may say besides its backend."""

    q_offset: Offset | None
    block_mask: BlockMask | None
    return_lse: bool
    kernel_options: Mapping[str, Any] | None
    invariant: bool


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    block_mask: BlockMask | None = None,
    return_lse: Literal[False] = False,
    backend: str = "auto",
    kernel_options: Mapping[str, Any] | None = None,
    invariant: bool = False,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    block_mask: BlockMask | None = None,
    return_lse: Literal[True],
    backend: str = "auto",
    kernel_options: Mapping[str, Any] | None = None,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    q_offset: Offset | None = None,
    block_mask: BlockMask | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    kernel_options: Mapping[str, Any] | None = None,
    invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention as the recipe says, by the fastest backend that computes exactly that.

    Under ``torch.autocast`` q, k and v are cast to the autocast dtype, as scaled_dot_product_attention does.

    Args:
        q: Queries [B, Hq, q_len, D].
        k: Keys [B, Hkv, kv_len, D]; Hq is a multiple of Hkv, consecutive query heads share a key head.
        v: Values [B, Hkv, kv_len, Dv].
        recipe: What to compute; a Mask or Score alone is taken as a Recipe, None is plain attention.
        q_offset: Absolute position of the first query: an int, a 0-d or a one-element integer tensor. Required for a
            "self" rule when q_len != kv_len. A tensor changes without recompiling; on another device than the CPU its
            value is not checked. Queries at negative positions see nothing.
        block_mask: The mask's BlockMask, if it is at hand. It is checked to be this mask's, for these sizes, as the
            mask is now; inside a user's torch.compile only the sizes can be checked. Without a mask in the recipe it
            is the mask itself.
        return_lse: Whether to return the log-sum-exp too.
        backend: "auto", or the name of a backend; see ``explain``.
        kernel_options: Options of the flex kernels, those of torch's FlexKernelOptions. One that is known to give
            another output is refused. What they claim of the lists is checked for masks that are bands of plain
            numbers, such as causal and windows, outside torch.compile; elsewhere it is your word.
        invariant: Whether the bits of a row may depend neither on padding after it nor on the batch size: all blocks
            are listed as partial and the kernel's tile sizes are fixed. Backend flex only.

    Returns:
        out [B, Hq, q_len, Dv] in the dtype of q, 0 in rows that see nothing; with return_lse also lse [B, Hq, q_len],
        float32 (float64 for float64 inputs): natural log, scores included, sink excluded, -inf in empty rows.

    Raises:
        ValueError: Sizes, lengths, devices or a block_mask that do not fit; an unknown backend or kernel option; a call
            that no backend, or not the one named, computes exactly. Nothing else is computed instead.
        TypeError: Something that is no recipe, dtypes that do not fit, or a kernel option of another type than torch
            documents.
        RuntimeError: torch's recompile limit is reached.
    """
    signature = None
    if q_offset is None and block_mask is None and kernel_options is None:
        signature = signature_of(recipe, q, k, v, return_lse, backend, invariant)
    runner = None if signature is None else kept(signature)
    if runner is not None:
        out, lse = runner(q, k, v)
    else:
        call = _checked(
            q,
            k,
            v,
            recipe,
            q_offset=q_offset,
            block_mask=block_mask,
            return_lse=return_lse,
            kernel_options=kernel_options,
            invariant=invariant,
        )
        chosen = _chosen(call, backend)
        if signature is not None:
            keep(signature, recipe, chosen.prepared(call))
        with torch.autocast(call.q.device.type, enabled=False):
            out, lse = chosen.run(call)
    if not return_lse:
        return out
    if lse is None:
        raise RuntimeError(f"{backend}: no lse was computed; please report this")
    return out, lse


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None = None,
    *,
    backend: str = "auto",
    **options: Unpack[CallOptions],
) -> Explanation:
    """Which backends would run this call of ``attention``, why the others would not, and which one would be taken.

    Takes the arguments of ``attention`` and raises as it does for input that no backend could take.

    Args:
        q: Queries [B, Hq, q_len, D].
        k: Keys [B, Hkv, kv_len, D].
        v: Values [B, Hkv, kv_len, Dv].
        recipe: What to compute, as for ``attention``.
        backend: "auto", or the name of a backend.
        **options: ``q_offset``, ``block_mask``, ``return_lse``, ``kernel_options`` and ``invariant`` of ``attention``.

    Returns:
        An Explanation: ``rows`` as data, a table when printed.

    Raises:
        ValueError: As ``attention``.
        TypeError: As ``attention``, and for an option that it does not have.
    """
    unknown = sorted(set(options) - set(CallOptions.__annotations__))
    if unknown:
        remedy = f"use some of {', '.join(CallOptions.__annotations__)}"
        checks.fail("explain", "it takes the options of attention", ", ".join(unknown), remedy, TypeError)
    call = _checked(q, k, v, recipe, **options)
    chosen = _first(_candidates(call, backend), call)
    measured = _measured(call)
    times = {} if measured is None else {name: measured.times(name) for name in measured.ms}
    rows = tuple(
        Row(each.name, _reason(each, call), each is chosen, times.get(each.name, NOT_MEASURED)) for each in backends.ALL
    )
    note = f"asked for: {backend}" if backend != "auto" else _how_chosen(call, chosen, measured)
    return Explanation(call.recipe.name, str(call.q.device), rows, note)


def _how_chosen(call: Call, chosen: Backend | None, measured: Measured | None) -> str:
    """What "auto" went by."""
    if measured is not None and chosen is not None and chosen not in _by_time(measured, call.recipe, call.shapes):
        computes = any(_reason(backends.get(name), call) is None for name in measured.ms)
        held = " but with a matrix of all pairs, timed on a shorter sequence" if computes else ""
        why = f"none of those measured on this card computes this{held}, so a fixed order decides"
        return f"auto: {why}; measured: {measured}"
    if isinstance(measured, Typical):
        scaled = "" if measured.shapes == call.shapes else ", scaled to these sizes; the times are unscaled"
        return f"auto: {call.recipe.name} was not measured on this card; the fastest by {measured}{scaled}"
    if measured is not None and measured.shapes == call.shapes:
        return f"auto: the fastest of those measured on this card: {measured}"
    if measured is not None:
        return (
            "auto: the fastest by the nearest case measured on this card, scaled to these sizes; the times are those "
            f"of the case itself: {measured}"
        )
    if table_for(call.q.device) is None:
        return f"auto: nothing was measured on this {call.q.device.type} device, so a fixed order decides"
    return f"auto: {call.recipe.name} was not measured on this card in {call.q.dtype}, so a fixed order decides"


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe | Mask | Score | None,
    *,
    q_offset: Offset | None = None,
    block_mask: BlockMask | None = None,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    invariant: bool = False,
) -> Call:
    """The call, if everything about it fits together.

    Raises:
        ValueError: As ``attention``.
        TypeError: As ``attention``.
    """
    recipe = Recipe.of(recipe, "attention")
    q, k, v = _autocast(recipe.name, q, k, v)
    check_call(recipe.name, q, k, v)
    q_len, kv_len = q.shape[2], k.shape[2]
    checks.boolean(recipe.name, "return_lse", return_lse, "pass True to get the log-sum-exp too")
    checks.boolean(recipe.name, "invariant", invariant, "pass True for bits that depend on no other row")
    check_kernel_options(recipe.name, kernel_options)
    check_device(recipe, q.device)
    check_user_functions(recipe, q.device)
    placed = recipe.sized(q.shape[0], q.shape[1]).place(q_len, kv_len, q_offset)
    check_sizes(placed, q)
    check_device(placed, q.device)
    placed = _with_block_mask(placed, block_mask, q, kv_len)
    gradients = torch.is_grad_enabled()
    needs = Needs(
        input_gradients=gradients and (q.requires_grad or k.requires_grad or v.requires_grad),
        parameter_gradients=gradients and placed.requires_grad(),
        lse=return_lse,
        invariant=invariant,
        kernel_options=bool(kernel_options),
        options_on=options_on(kernel_options),
        block_mask=block_mask is not None,
        compiling=torch.compiler.is_compiling(),
    )
    return Call(q, k, v, placed, needs, block_mask, kernel_options)


def _autocast(name: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast as autocast casts the inputs of scaled_dot_product_attention: all but float64.

    Raises:
        TypeError: Something that is no tensor.
        ValueError: Tensors without values, for whose device there is no autocast.
    """
    check_tensors(name, q=q, k=k, v=v)
    device_type = q.device.type
    if not torch.is_autocast_enabled(device_type):
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    q, k, v = (t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in (q, k, v))
    return q, k, v


def _with_block_mask(recipe: Recipe, block_mask: BlockMask | None, q: Tensor, kv_len: int) -> Recipe:
    """The recipe, checked against a BlockMask that was handed in; one without a mask gets its mask from there."""
    if block_mask is None:
        return recipe
    lengths, sizes = (q.shape[2], kv_len), (q.shape[0], q.shape[1])
    if recipe.mask is not None:
        check_block_mask(recipe.name, block_mask, recipe.mask, lengths, sizes, q.device)
        return recipe
    check_bare_block_mask(recipe.name, block_mask, lengths, sizes, q.device)
    return replace(recipe, mask=Listed(block_mask))


def _chosen(call: Call, backend: str) -> Backend:
    """The backend that runs a call.

    Raises:
        ValueError: None computes it exactly.
    """
    candidates = _candidates(call, backend)
    chosen = _first(candidates, call)
    if chosen is None:
        mendable = [each for each in candidates if (reason := _reason(each, call)) is not None and reason.mendable]
        listed = mendable[:1] or (candidates if backend != "auto" else backends.ALL)
        reasons = "; ".join([_why_not(each, call) for each in listed])
        remedy = "see attn_mods.explain for what each backend computes"
        checks.fail(call.recipe.name, "a backend must compute exactly this", f"none ({reasons})", remedy)
    return chosen


def _candidates(call: Call, backend: str) -> list[Backend]:
    """The backends to try: the one asked for, or those measured on this card, the fastest first, then the others."""
    if backend != "auto":
        return [backends.get(backend)]
    return ranked(_measured(call), call.recipe, call.shapes, call.q.device)


def ranked(measured: Measured | None, recipe: Recipe, shapes: Shapes, device: torch.device) -> list[Backend]:
    """The order in which "auto" tries the backends.

    Args:
        measured: What it goes by; None is the fixed order.
        recipe: The placed recipe.
        shapes: Sizes of the call.
        device: Where it runs.
    """
    in_order = backends.in_order(recipe, shapes, device)
    if measured is None:
        return in_order
    fastest = _by_time(measured, recipe, shapes)
    return [*fastest, *(each for each in in_order if each not in fastest)]


def _by_time(measured: Measured, recipe: Recipe, shapes: Shapes) -> list[Backend]:
    """The backends that were measured, the fastest first.

    What holds a q_len x kv_len matrix and was fast on a shorter sequence may not even fit on this one.
    """
    is_longer = shapes.q_len * shapes.kv_len > measured.shapes.q_len * measured.shapes.kv_len
    by_time = (backends.get(name) for name in measured.fastest_first(shapes))
    return [each for each in by_time if not (is_longer and each.is_dense(recipe, shapes))]


def _measured(call: Call) -> Measured | None:
    """What comes nearest on this kind of card; nothing while a compiler traces, to which lengths may be symbols."""
    table = None if call.needs.compiling else table_for(call.q.device)
    if table is None:
        return None
    recipe, training = call.recipe, call.needs.training
    return look_up(table, recipe.name, recipe.score is not None, call.shapes, call.q.dtype, training)


def _reason(backend: Backend, call: Call) -> Reason | None:
    return backend.supports(call.recipe, call.shapes, call.q.dtype, call.q.device, call.needs)


def _why_not(backend: Backend, call: Call) -> str:
    reason = _reason(backend, call)
    return f"{backend.name}: {'nothing against it' if reason is None else reason.text}"


def _first(candidates: list[Backend], call: Call) -> Backend | None:
    """The first candidate that computes the call; none where one before it has a reason that the caller can lift."""
    for candidate in candidates:
        reason = _reason(candidate, call)
        if reason is None:
            return candidate
        if reason.mendable:
            return None
    return None
