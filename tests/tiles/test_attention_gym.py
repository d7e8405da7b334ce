"""Every mask function of attention-gym, unmodified, gives the BlockMask that torch gives.

attention-gym (package ``attn-gym``) is another catalogue of FlexAttention masks: rules written by others, in other
styles. The functions are discovered, so that a new one without parameters here fails, and is not silently left out.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from attn_gym import masks
from torch.nn.attention.flex_attention import _mask_mod_signature, noop_mask
from torch.nn.attention.flex_attention import create_block_mask as torch_create_block_mask

from attn_mods.block_mask import create_block_mask
from tests.block_mask_equality import assert_same_block_mask

Rule = Callable[..., torch.Tensor]

# (B, H, q_len, kv_len, block size): aligned, ragged, unequal lengths, unequal blocks, several batches and heads
GRIDS = [
    (1, 1, 256, 256, (128, 128)),
    (1, 2, 200, 200, (64, 64)),
    (2, 1, 130, 250, (32, 64)),
    (2, 2, 300, 77, (16, 128)),
    (None, None, 50, 64, (16, 16)),
    (1, 1, 1, 333, (128, 64)),
]

# torch 2.13 can be asked for full blocks in the partial lists
HAS_SEPARATE = "separate_full_blocks" in inspect.signature(torch_create_block_mask).parameters
OPTIONS: list[dict[str, Any]] = [{}, {"separate_full_blocks": False}] if HAS_SEPARATE else [{}]

# public functions with "mask" in their names that are no rules
NOT_RULES = {
    "create_causal_block_mask_fast": "builds a BlockMask itself",
    "create_vsa_block_mask": "builds a BlockMask itself",
    "create_vsa_flash_block_mask": "builds a BlockMask itself",
    "validate_vsa_block_mask_inputs": "checks arguments",
}


def offsets(length: int) -> torch.Tensor:
    """Cumulative lengths of five documents that cover ``length`` tokens, one of them empty, one of one token."""
    cuts = [0, length // 5, length // 5, length // 5 + 1, (4 * length) // 5, length]
    return torch.tensor([min(cut, length) for cut in cuts])


def documents(inner: Rule) -> Callable[[int, int], Rule]:
    return lambda q_len, kv_len: masks.generate_doc_mask_mod(inner, offsets(max(q_len, kv_len)))


def canvas(length: int, multiple: int = 1) -> int:
    """The side of the smallest square canvas that holds ``length`` tokens and is a multiple."""
    return -(-math.isqrt(max(length - 1, 0)) // multiple) * multiple + multiple


def global_tokens(q_len: int, kv_len: int) -> Rule:
    is_global = torch.zeros(max(q_len, kv_len), dtype=torch.bool)
    is_global[:2] = is_global[37::60] = True
    return masks.generate_global_sliding_window(9, is_global)


def images(q_len: int, kv_len: int) -> Rule:
    """Flamingo: each image has 16 keys, and is seen by one interval of the text."""
    count = -(-kv_len // 16)
    starts = (torch.arange(count) * q_len) // count
    intervals = torch.stack([starts, (starts + 20).clamp(max=q_len)], dim=1)
    return masks.generate_vision_cross_attention_mask_mod(intervals, 16)


def tree(q_len: int, kv_len: int) -> Rule:
    parents = [-1, *((node - 1) // 2 for node in range(1, q_len))]
    ancestors = masks.build_tree_ancestor_matrix(parents, device="cpu")
    return masks.generate_jetspec_tree_causal_mask_mod(max(kv_len - q_len, 5), ancestors)


def shared_prefix(q_len: int, kv_len: int) -> Rule:
    return masks.generate_shared_prefix_mask_mod(offsets(max(q_len, kv_len)), torch.tensor([0, 0, 0, 3, 3]))


def spatio_temporal_tiles(length: int) -> int:
    """How many frames of 8 x 8 tokens hold ``length``, to a multiple of two."""
    return -(-length // 128) * 2


def selected_tiles(q_len: int, kv_len: int) -> Rule:
    tile, generator = 24, torch.Generator().manual_seed(0)
    q_tiles, kv_tiles = -(-q_len // tile), -(-kv_len // tile)
    chosen = torch.rand(2, 2, q_tiles, kv_tiles, generator=generator).topk(min(3, kv_tiles)).indices
    sizes = torch.randint(1, tile + 1, (kv_tiles,), generator=generator)
    return masks.generate_vsa_mask_mod(chosen, tile, sizes)


def vsa_padding(q_len: int, kv_len: int) -> Rule:
    from attn_gym.masks.vsa import generate_vsa_padding_mask_mod

    sizes = torch.tensor([24, 24, 5, 24, 1]).repeat(-(-kv_len // 24))
    return generate_vsa_padding_mask_mod(sizes, 24)


def natten(generate: Callable[..., Rule], multiple: int, *more: int) -> Callable[[int, int], Rule]:
    def build(q_len: int, kv_len: int) -> Rule:
        side = canvas(max(q_len, kv_len), multiple)
        return generate(side, side, 5, 3, *more)

    return build


# function -> its rules, each made for a grid's lengths
CASES: dict[str, list[Callable[[int, int], Rule]]] = {
    "batchify_mask_mod": [
        lambda q_len, kv_len: masks.batchify_mask_mod(masks.causal_mask, 48),
        lambda q_len, kv_len: masks.batchify_mask_mod(noop_mask, 64),
    ],
    "causal_mask": [lambda q_len, kv_len: masks.causal_mask],
    "generate_block_diffusion_mask": [
        lambda q_len, kv_len: masks.generate_block_diffusion_mask(-(-max(q_len, kv_len) // 2), 12)
    ],
    "generate_dilated_sliding_window": [lambda q_len, kv_len: masks.generate_dilated_sliding_window(60, 7)],
    "generate_doc_mask_mod": [
        documents(masks.causal_mask),
        documents(noop_mask),
        documents(masks.generate_sliding_window(9)),
        documents(masks.generate_prefix_lm_mask(5)),
    ],
    "generate_global_sliding_window": [global_tokens],
    "generate_jetspec_training_mask_mod": [lambda q_len, kv_len: masks.generate_jetspec_training_mask_mod(40, 12)],
    "generate_jetspec_tree_causal_mask_mod": [tree],
    "generate_morton_natten": [natten(masks.generate_morton_natten, 2)],
    "generate_natten": [natten(masks.generate_natten, 1)],
    "generate_packed_causal_doc_mask_mod": [
        lambda q_len, kv_len: masks.generate_packed_causal_doc_mask_mod(offsets(max(q_len, kv_len)))
    ],
    "generate_prefix_lm_mask": [
        lambda q_len, kv_len: masks.generate_prefix_lm_mask(70),
        lambda q_len, kv_len: masks.generate_prefix_lm_mask(0),
    ],
    "generate_shared_prefix_mask_mod": [shared_prefix],
    "generate_sliding_window": [
        lambda q_len, kv_len: masks.generate_sliding_window(33),
        lambda q_len, kv_len: masks.generate_sliding_window(0),
    ],
    "generate_spatial_head_mask_mod": [
        lambda q_len, kv_len: masks.generate_spatial_head_mask_mod(10, 5, 40, 2, attn_sink=False, round_width=16),
        lambda q_len, kv_len: masks.generate_spatial_head_mask_mod(10, 5, 40, 2, attn_sink=True, round_width=16),
    ],
    "generate_sta_mask_mod_2d": [
        lambda q_len, kv_len: masks.generate_sta_mask_mod_2d((canvas(max(q_len, kv_len), 4),) * 2, (12, 8), (4, 4)),
        lambda q_len, kv_len: masks.generate_sta_mask_mod_2d((8, 16), (8, 4), (4, 4), text_seq_len=30),
    ],
    "generate_sta_mask_mod_3d": [
        lambda q_len, kv_len: masks.generate_sta_mask_mod_3d(
            (spatio_temporal_tiles(max(q_len, kv_len)), 8, 8), (2, 4, 8), (2, 4, 4)
        ),
        lambda q_len, kv_len: masks.generate_sta_mask_mod_3d((2, 8, 8), (2, 4, 4), (2, 4, 4), text_seq_len=20),
    ],
    "generate_temporal_head_mask_mod": [lambda q_len, kv_len: masks.generate_temporal_head_mask_mod(10, 5, 40, 2)],
    "generate_tiled_natten": [natten(masks.generate_tiled_natten, 4, 4, 4)],
    "generate_vision_cross_attention_mask_mod": [images],
    "generate_vsa_mask_mod": [selected_tiles],
    "generate_vsa_padding_mask_mod": [vsa_padding],
}


def modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(masks.__path__, "attn_gym.masks.")]
    return [importlib.import_module(name) for name in names]


def public_functions() -> dict[str, Callable[..., Any]]:
    """Public functions by name, each where it is defined."""
    return {
        name: function
        for module in modules()
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def is_mask_function(function: Callable[..., Any]) -> bool:
    """A rule itself, by its four arguments, or a maker of one, by what it says it returns."""
    signature = inspect.signature(function, eval_str=True)
    is_rule = list(signature.parameters) == ["b", "h", "q_idx", "kv_idx"]
    return is_rule or signature.return_annotation == _mask_mod_signature


def test_every_mask_function_has_a_case(record_property: Callable[[str, object], None]) -> None:
    functions = public_functions()
    found = {name for name, function in functions.items() if is_mask_function(function)}
    by_name = {name for name in functions if "mask" in name} - found
    assert found == set(CASES), "give new mask functions a case; drop those that are gone"
    assert by_name == set(NOT_RULES), "functions that look like masks: give each a case, or say why it is no rule"
    figures = f"attention-gym: {len(found)} functions, {sum(map(len, CASES.values()))} rules, {len(GRIDS)} grids"
    print(figures)
    record_property("figures", figures)
    assert len(found) >= 20
    assert len(GRIDS) >= 6


@pytest.mark.parametrize("name", CASES)
def test_block_mask_equals_torch(name: str) -> None:
    compared = 0
    for B, H, q_len, kv_len, block_size in GRIDS:
        for make in CASES[name]:
            rule = make(q_len, kv_len)
            for options in OPTIONS:
                arguments = {"device": "cpu", "BLOCK_SIZE": block_size, **options}
                expected = torch_create_block_mask(rule, B, H, q_len, kv_len, **arguments)
                got = create_block_mask(rule, B, H, q_len, kv_len, **arguments)
                try:
                    assert_same_block_mask(got, expected)
                except AssertionError as error:
                    grid = f"B={B} H={H} q_len={q_len} kv_len={kv_len} BLOCK_SIZE={block_size}"
                    raise AssertionError(f"{rule.__name__} on {grid}: {error}") from error
                compared += 1
    assert compared == len(OPTIONS) * len(GRIDS) * len(CASES[name])
