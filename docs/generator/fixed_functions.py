"""How kernels with fixed arguments compute the same: the code for scaled_dot_product_attention and flash-attn."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from attn_mods.band import Band
from attn_mods.entry import Entry
from attn_mods.mask import Mask
from attn_mods.score import Score
from attn_mods.scores import Alibi, Softcap
from docs.generator.examples import Example, first, is_causal

KERNELS = ("scaled_dot_product_attention", "flash_attn_func", "flash_attn_varlen_func")
SDPA_IMPORT = "from torch.nn.functional import scaled_dot_product_attention"
NEEDS_A_CARD = "It needs tensors of a CUDA card in bfloat16 or float16."
HOLDS_A_MATRIX = "This holds a matrix of queries x keys: it computes every pair, and memory grows with both lengths."


def sdpa(entry: Entry, example: Example, causal: bool) -> tuple[str, str] | None:
    """Code for scaled_dot_product_attention and what to know of it; None if it cannot compute this.

    Args:
        entry: The entry.
        example: Its example.
        causal: Whether the example, a score, is under a causal mask.
    """
    if isinstance(example.part, Mask):
        return _sdpa_mask(example.part, example.q_len, example.kv_len)
    if not example.part.additive:
        return None
    q_len, kv_len = example.q_len, example.kv_len
    scale = "" if entry.scale is None else f", scale={entry.scale}"
    lines = [
        SDPA_IMPORT,
        "",
        f"zeros = torch.zeros(1, q.shape[1], {q_len}, {kv_len})",
        f"bias = score.dense(zeros, torch.arange({q_len}), torch.arange({kv_len}))",
        *([f"bias = bias.masked_fill(~masks.Causal().dense({q_len}, {kv_len}), -torch.inf)"] if causal else []),
        f"out = scaled_dot_product_attention(q, k, v, attn_mask=bias{scale})",
    ]
    return "\n".join(lines), f"{HOLDS_A_MATRIX} In bfloat16 the bias is rounded before it is added."


def _sdpa_mask(mask: Mask, q_len: int, kv_len: int) -> tuple[str, str]:
    band = mask.band()
    plain = band is not None and band.cu_seqlens is None and band.left is None
    if plain and band is not None and band.right is None:
        return f"{SDPA_IMPORT}\n\nout = scaled_dot_product_attention(q, k, v)", "No mask is needed."
    if plain and band is not None and band.right == 0 and q_len == kv_len:
        note = "For as many queries as keys: `is_causal` aligns the first query with the first key."
        return f"{SDPA_IMPORT}\n\nout = scaled_dot_product_attention(q, k, v, is_causal=True)", note
    code = (
        f"{SDPA_IMPORT}\n\nvisible = mask.dense({q_len}, {kv_len})  # True = visible\n"
        "out = scaled_dot_product_attention(q, k, v, attn_mask=visible)"
    )
    return code, f"{HOLDS_A_MATRIX} Not every kernel of it gives 0 for a row that sees no key."


def flash(example: Example, causal: bool) -> tuple[str, str] | None:
    """Code for flash-attn and what to know of it; None where its arguments cannot say this.

    Args:
        example: The example.
        causal: Whether it, a score, is under a causal mask.
    """
    if isinstance(example.part, Score):
        return _flash_score(example.part, causal)
    band = example.part.band()
    if band is None or example.q_len != example.kv_len:
        return None
    options = _options(band)
    note = "With fewer queries than keys flash-attn aligns the last query with the last key."
    if any("window_size" in option for option in options):
        counted = (
            "`window_size` counts the keys before and after the query's own, which is not counted; -1 is unbounded."
        )
        note = f"{counted} {note}"
    if band.cu_seqlens is None:
        return _flash_call(options), f"{note} {NEEDS_A_CARD}"
    lines = [
        "from flash_attn import flash_attn_varlen_func",
        "",
        "tokens = [t[0].transpose(0, 1) for t in (q, k, v)]  # [tokens, heads, head dimension]",
        "cu = mask.band().cu_seqlens.int().to(q.device)",
        "longest = int(cu.diff().max())",
        f"out = flash_attn_varlen_func({', '.join(['*tokens, cu, cu, longest, longest', *options])})",
        "out = out.transpose(0, 1)[None]",
    ]
    return "\n".join(lines), f"{note} {NEEDS_A_CARD}"


def _flash_call(options: list[str], before: tuple[str, ...] = ()) -> str:
    lines = [
        "from flash_attn import flash_attn_func",
        "",
        *before,
        "rows = [t.transpose(1, 2) for t in (q, k, v)]  # [batch, tokens, heads, head dimension]",
        f"out = flash_attn_func({', '.join(['*rows', *options])}).transpose(1, 2)",
    ]
    return "\n".join(lines)


def _options(band: Band) -> list[str]:
    causal = ["causal=True"] if band.right == 0 else []
    sides = tuple(-1 if side is None else side for side in (band.left, band.right))
    return causal if band.left is None and band.right in (None, 0) else [*causal, f"window_size={sides}"]


def _flash_score(score: Score, causal: bool) -> tuple[str, str] | None:
    options = ["causal=True"] if causal else []
    if isinstance(score, Softcap):
        return _flash_call([*options, f"softcap={score.cap}"]), f"`softcap=0.0` is no cap. {NEEDS_A_CARD}"
    if isinstance(score, Alibi) and score.num_heads is not None and causal:
        before = (
            "from attn_mods.scores.alibi import published_slopes",
            "",
            f"slopes = torch.tensor(published_slopes({score.num_heads}), device=q.device)",
        )
        note = "flash-attn subtracts slope x |i - j|: under a causal mask that is the signed form."
        return _flash_call([*options, "alibi_slopes=slopes"], before), f"{note} {NEEDS_A_CARD}"
    return None


def argument_names(entry: Entry) -> list[str]:
    """The arguments by which other libraries ask for the same, found in the code that calls them."""
    example = first(entry, 16)
    causal = is_causal(entry)
    programs = [found[0] for found in (sdpa(entry, example, causal), flash(example, causal)) if found is not None]
    named = {name for program in programs for name in _named(program)}
    packed = any("flash_attn_varlen_func" in program for program in programs)
    return sorted(named | ({"cu_seqlens_q", "cu_seqlens_k"} if packed else set()))


def _named(program: str) -> Iterator[str]:
    """The arguments that a program hands over by name in its calls of kernels."""
    for call in ast.walk(ast.parse(program)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in KERNELS:
            yield from (keyword.arg for keyword in call.keywords if keyword.arg is not None)
