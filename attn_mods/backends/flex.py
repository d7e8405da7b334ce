"""flex: compiled flex_attention, which skips the blocks a mask leaves empty.

Never run uncompiled: eager flex_attention ignores the block lists and holds the whole q_len x kv_len matrix. On a GPU
the kernels are tuned (mode "max-autotune-no-cudagraphs"); on a CPU there is one kernel and nothing to tune, so the
default mode compiles the same code in half the time.
"""

from __future__ import annotations

import platform
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attn_mods.backends.base import Backend, Call, Needs, Reason, Runner, Shapes
from attn_mods.backends.block_mask_cache import block_mask_for, block_mask_in_graph, holds_function, of_any_length
from attn_mods.backends.cpu_kernel import mend_cpu_kernel
from attn_mods.backends.default_stages import mend_default_stages
from attn_mods.backends.negative_indexes import mend_triton_kernels
from attn_mods.backends.plan import Plan, call_flex, plan_for, run_plan
from attn_mods.backends.sink_key import ScoreWithSinkKey, with_sink_key
from attn_mods.backends.structure_options import option_refusal, structure_options
from attn_mods.block_mask import has_full_blocks
from attn_mods.function_state import kernel_signature
from attn_mods.realised import realised
from attn_mods.recipe import Recipe
from attn_mods.score import Score, ScoreMod
from attn_mods.symbols import fixed

DEVICES = ("cpu", "cuda", "xpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TUNED_MODE = "max-autotune-no-cudagraphs"

# One tile size whatever the lengths, and never the decoding kernel, which splits the keys by their number.
INVARIANT_OPTIONS = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_M1": 64,
    "BLOCK_N1": 64,
    "BLOCK_M2": 64,
    "BLOCK_N2": 64,
    "FORCE_USE_FLEX_ATTENTION": True,
}
INVARIANT_REFUSAL = "invariant=True sets the kernel's options itself; leave kernel_options out"
MOST_SCORE_MODS = 64

# Read once: a compiler that traces a call cannot ask the machine.
CPU_HAS_A_KERNEL = platform.system() != "Darwin" and torch.cpu._is_avx2_supported()

_score_mods: OrderedDict[Hashable, ScoreMod] = OrderedDict()
_lock = threading.Lock()


class Flex(Backend):
    """torch.compile(flex_attention), one compiled function a structure of recipe."""

    name = "flex"

    def limits(
        self, recipe: Recipe, shapes: Shapes, dtype: torch.dtype, device: torch.device, needs: Needs
    ) -> Reason | None:
        """All recipes in float32 and half types; on a CPU without gradients and lse."""
        if device.type not in DEVICES:
            return Reason(f"flex_attention does not run on {device.type}")
        if dtype not in DTYPES:
            return Reason(f"flex_attention has no kernel for {dtype}")
        if needs.kernel_options:
            refused = INVARIANT_REFUSAL if needs.invariant else option_refusal(recipe, shapes, needs)
            if refused is not None:
                return Reason(refused, mendable=True)
        if device.type == "cpu":
            reason = _cpu_limits(needs)
            if reason is not None:
                return reason
        if needs.compiling and holds_function(recipe.mask):
            lists_must_be_made = needs.invariant or (device.type == "cpu" and recipe.sink is not None)
            if lists_must_be_made or not needs.block_mask:
                text = "inside torch.compile the block_mask of a user's rule must be made outside and passed in"
                return Reason(text, mendable=True)
        return None

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Run the plan of this structure, or inside a user's torch.compile flex_attention itself."""
        if call.q.device.type == "cpu":
            mend_cpu_kernel()
            call = with_sink_key(call)
        if call.needs.compiling:
            return self._in_graph(call)
        return self._planned(call)(call.q, call.k, call.v)

    def prepared(self, call: Call) -> Runner:
        """The plan is looked for again only where the mask gives other lists or the score another rule."""
        has_sink_key = call.q.device.type == "cpu" and call.recipe.sink is not None  # k and v get it in each call
        if call.needs.compiling or call.needs.parameter_gradients or has_sink_key:
            return super().prepared(call)
        return self._planned(call)

    def _planned(self, call: Call) -> Runner:
        recipe, needs = call.recipe, call.needs
        others = recipe, needs, call.block_mask, call.kernel_options
        return_lse = needs.lse or recipe.sink is not None
        last: _Last | None = None

        def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            nonlocal last
            call = Call(q, k, v, *others)
            if not needs.input_gradients:
                q, k, v = q.detach(), k.detach(), v.detach()
            block_mask = _block_mask(call)
            score_mod = None if recipe.score is None else _score_mod(recipe.score, self.form(q, return_lse))
            found = last  # another thread may put its own there
            if found is None or not found.is_of(block_mask, score_mod):
                options = self.kernel_options(call, block_mask)
                plan = self.plan(call, q, k, v, score_mod, block_mask, recipe.scale, return_lse, options)
                found = last = _Last(plan, options, score_mod, None if block_mask is None else weakref.ref(block_mask))
            if (
                block_mask is not None
                and block_mask is not call.block_mask
                and self.is_for_any_length(found.plan, q, k)
            ):
                block_mask = of_any_length(block_mask)
            arguments = q, k, v, score_mod, block_mask, recipe.scale, return_lse, found.options
            return self.finished(call, *run_plan(recipe.name, found.plan, *arguments))

        return run

    def _in_graph(self, call: Call) -> tuple[Tensor, Tensor | None]:
        recipe, needs = call.recipe, call.needs
        q, k, v = (call.q, call.k, call.v) if needs.input_gradients else (t.detach() for t in (call.q, call.k, call.v))
        if recipe.score is not None:
            recipe = replace(recipe, score=recipe.score.mapped(_of_plain_sizes))
        if q.device.type == "cpu":
            # The CPU kernel (torch 2.13) reads views made in the same graph as if they began at their storage, and is
            # not generated for a parameter that the graph computes and has not stored.
            q, k, v = (realised(tensor) for tensor in (q, k, v))
            recipe = recipe.mapped(realised)
        else:
            mend_triton_kernels()
            mend_default_stages()
        block_mask = _block_mask(replace(call, recipe=recipe))
        return_lse = needs.lse or recipe.sink is not None
        score_mod = None if recipe.score is None else _score_mod(recipe.score, self.form(q, return_lse))
        options = self.kernel_options(call, block_mask)
        out, lse = call_flex(q, k, v, score_mod, block_mask, recipe.scale, return_lse, options)
        if out.device.type == "cpu":
            out = realised(out)  # the CPU kernel (torch 2.13) cannot have what follows it fused into it
        return self.finished(call, out, lse)

    def finished(self, call: Call, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the call returns of what the kernel did."""
        return call.finished(out, lse)

    def form(self, q: Tensor, return_lse: bool) -> str:
        """Which form of a score's rule is run: that for half types may be a little less exact than float32.

        The lse is float32 whatever the inputs are, and would show it.
        """
        is_half = q.device.type != "cpu" and q.dtype != torch.float32 and not return_lse
        return f"{self.name}_{str(q.dtype).removeprefix('torch.')}" if is_half else self.name

    def plan(self, call: Call, *arguments: Any) -> Plan:
        """The plan of these arguments of ``call_flex``."""
        q, k = arguments[:2]
        if q.device.type != "cpu":
            mend_triton_kernels()
        mode = None if q.device.type == "cpu" or call.needs.invariant else TUNED_MODE
        return plan_for((mode, plan_key(*arguments)), mode, (q.shape[2], k.shape[2]))

    def is_for_any_length(self, plan: Plan, q: Tensor, k: Tensor) -> bool:
        """Whether a plan was compiled for other lengths, and so takes lists for any."""
        return (q.shape[2], k.shape[2]) != plan.first_lengths

    def kernel_options(self, call: Call, block_mask: BlockMask | None) -> dict[str, Any] | None:
        """The caller's options and those that are true of the lists."""
        asked = call.kernel_options or {}
        own: dict[str, Any] = structure_options(call.recipe, call.shapes, call.q.device, call.needs, asked)
        if call.q.device.type != "cpu":
            if call.needs.invariant:
                own = INVARIANT_OPTIONS
            elif "BACKEND" not in asked and block_mask is not None and _overfills_a_tile(call.shapes, block_mask):
                own["FORCE_USE_FLEX_ATTENTION"] = True
        return {**own, **asked} or None


@dataclass(frozen=True)
class _Last:
    """What the last call of a prepared run used."""

    plan: Plan
    options: dict[str, Any] | None
    score_mod: ScoreMod | None
    lists: weakref.ref[BlockMask] | None

    def is_of(self, block_mask: BlockMask | None, score_mod: ScoreMod | None) -> bool:
        """Whether it serves these lists and this rule."""
        lists = None if self.lists is None else self.lists()
        return lists is block_mask and score_mod is self.score_mod


def _of_plain_sizes(tensor: Tensor) -> Tensor:
    """The same, with plain ints for heads and the columns of a table [H, n].

    No kernel is generated (torch 2.11, 2.13) for a size that first is a symbol and then is not, as that of heads.
    Samples and lengths [B, H, ...] may be symbols.
    """
    is_table = tensor.dim() <= 2
    return tensor.reshape([fixed(size) if is_table or axis == 1 else size for axis, size in enumerate(tensor.shape)])


def _cpu_limits(needs: Needs) -> Reason | None:
    if not CPU_HAS_A_KERNEL:
        return Reason("compiled flex_attention on a CPU needs AVX2 and is not made for macOS")
    if needs.training:
        return Reason("it has no gradients on a CPU; training there goes through eager")
    return Reason("it returns no lse on a CPU") if needs.lse else None


def _block_mask(call: Call) -> BlockMask | None:
    mask = call.recipe.mask
    if mask is None or (call.block_mask is not None and not call.needs.invariant):
        return call.block_mask
    build = block_mask_in_graph if call.needs.compiling else block_mask_for
    shapes = call.shapes
    return build(mask, shapes.q_len, shapes.kv_len, call.q.device, separate_full_blocks=not call.needs.invariant)


def _score_mod(score: Score, backend: str) -> ScoreMod:
    """A score's rule; kept while its tensors do not change, unless a gradient flows into what it derives of them."""
    if isinstance(score, ScoreWithSinkKey):  # made anew for every call; what is inside is not
        return score.around(None if score.score is None else _score_mod(score.score, backend))
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and score.requires_grad()):
        return score.score_mod(backend)
    state = score.key()
    key = backend, state
    with _lock:
        if key in _score_mods:
            _score_mods.move_to_end(key)
            return _score_mods[key]
    rule = score.score_mod(backend)
    if score.key() == state:  # the key of what cannot be watched equals no other
        with _lock:
            _score_mods[key] = rule
            if len(_score_mods) > MOST_SCORE_MODS:
                _score_mods.popitem(last=False)
    return rule


def _overfills_a_tile(shapes: Shapes, block_mask: BlockMask) -> bool:
    """Whether the decoding kernel, which torch takes below 128 queries, would need a tile larger than a block.

    Its tile holds all queries of a key head; where it is larger than a block, no kernel is found (torch 2.11 and 2.13).
    """
    return shapes.q_len * (shapes.q_heads // shapes.kv_heads) > block_mask.BLOCK_SIZE[0]


def plan_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: ScoreMod | None,
    block_mask: BlockMask | None,
    scale: float | None,
    return_lse: bool,
    options: dict[str, Any] | None,
) -> Hashable:
    """All but batch and lengths, of which only a single query, the kernel of decoding, counts as another plan."""
    shapes = replace(Shapes.of(q, k, v), batch=0, q_len=min(q.shape[2], 2), kv_len=0)
    lists = None
    if block_mask is not None:
        lists = kernel_signature(block_mask.mask_mod), tuple(block_mask.BLOCK_SIZE), has_full_blocks(block_mask)
    gradients = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *(t.requires_grad for t in (q, k, v))
    kind = shapes, q.dtype, q.device, gradients
    return kind, kernel_signature(score_mod), lists, scale, return_lse, tuple(sorted((options or {}).items()))


FLEX = Flex()
