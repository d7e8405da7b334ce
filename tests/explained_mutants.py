"""Mutants that nothing can notice: entry -> mutant -> why it computes the same function."""

ONE_ROW = {"one_row: 0 -> -1 in table[0]": "of one row the first is the last"}
COORDINATES = {
    "coordinates: 0 -> -1 in axis == 0": "the first coordinate of a token of the canvas is below its size, so that the "
    "remainder modulo the size is the coordinate itself",
}
SAMPLES_ARE_NOT_READ = "the rule reads the number of heads alone"
NEVER_EQUAL = (
    "text tokens need numbers that no span has, and that differ between query and key: 3 * n + 1 and 3 * n + 2, or "
    "3 * n - 1 and 3 * n - 2, do for any n; which n makes tiles easier to decide, not the mask"
)
ANY_TABLE_THAT_FITS = (
    "only the refusal of tables too large for a test depends on it, and flex, which the rule is made for here, reads "
    "tables of any size; tests/scores/test_pair_bias.py lowers the limit"
)
FORMS_OF_SOFTCAP = (
    "all forms compute the same to float64's rounding; tests/scores/test_forms.py says which kernel gets which"
)
SLOPES_SIZES = "(1, self.num_heads or (1 if self.slopes is None else self.slopes.shape[0]))"
SLOPES = "the number of heads is read for published slopes alone, and is then num_heads"

EXPLAINED: dict[str, dict[str, str]] = {
    "document": ONE_ROW,
    "global_plus_window": ONE_ROW,
    "cumsum_ar": ONE_ROW,
    "multimodal_spans": ONE_ROW
    | {
        "_numbered: span.cummax(-1).values if span.shape[-1] else span -> "
        "span.cummax(-1).values if not span.shape[-1] else span": NEVER_EQUAL,
        "_numbered: span.cummax(-1) -> span.cummin(-1)": NEVER_EQUAL,
        "_numbered: 3 * before + side -> 3 * before - side": NEVER_EQUAL,
        "_numbered: 1 -> 0 in -1": NEVER_EQUAL,
        "_numbered: 1 -> 0 in -1 (2)": NEVER_EQUAL,
    },
    "neighborhood": COORDINATES
    | {"_sees: 2 -> 1 in kernel % 2": "odd windows are then compared as even ones are, by two comparisons"},
    "sliding_tile": COORDINATES
    | {
        "_windows: 0 -> -1 in max(count - span, 0)": "it matters for a window longer than its axis alone, which shows "
        "the whole axis if it begins one tile before it too",
    },
    "tree_verification": {
        "nodes: -1 -> 1": "the table is square, so that its last two sizes are equal, and index 1 is one of them",
        "nodes: 1 -> 2 in -1": "the table is square, so that its last two sizes are equal",
    },
    "alibi": {
        f"batch_and_heads: 1 -> 2 in {SLOPES_SIZES}": SAMPLES_ARE_NOT_READ,
        f"batch_and_heads: 1 -> 0 in {SLOPES_SIZES}": SAMPLES_ARE_NOT_READ,
        "batch_and_heads: 1 if self.slopes is None else self.slopes.shape[0] -> "
        "1 if not self.slopes is None else self.slopes.shape[0]": SLOPES,
        "batch_and_heads: self.slopes is None -> self.slopes is not None": SLOPES,
        "batch_and_heads: 1 -> 2 in 1 if self.slopes is None else self.slopes.shape[0]": SLOPES,
        "batch_and_heads: 1 -> 0 in 1 if self.slopes is None else self.slopes.shape[0]": SLOPES,
        "batch_and_heads: 0 -> -1 in self.slopes.shape[0]": "slopes have one dimension: the first is the last",
    },
    "softcap": {
        "score_mod: if backend not in ('flex_bfloat16', 'flex_float16') -> "
        "if not backend not in ('flex_bfloat16', 'flex_float16')": FORMS_OF_SOFTCAP,
        "score_mod: if not self.approximate -> if not not self.approximate": FORMS_OF_SOFTCAP,
        "score_mod: not self.approximate -> self.approximate": FORMS_OF_SOFTCAP,
    },
    "relative_bias_table": {
        "batch_and_heads: 1 -> 2 in (1, self.table.shape[0])": SAMPLES_ARE_NOT_READ,
        "batch_and_heads: 1 -> 0 in (1, self.table.shape[0])": SAMPLES_ARE_NOT_READ,
    },
    "t5_bucket": {
        "batch_and_heads: 1 -> 2 in (1, self.table.shape[0])": SAMPLES_ARE_NOT_READ,
        "batch_and_heads: 1 -> 0 in (1, self.table.shape[0])": SAMPLES_ARE_NOT_READ,
        "buckets_of_distances: 0 -> -1 in ([], 0)": "at distance 0 the bucket rises until it is the right one, from "
        "below too",
        "_buckets: 0 -> -1 in before.flip(0)": "there is one axis",
        "score_mod: 0 -> 1 in (kv_idx - q_idx + farthest).clamp(0, 2 * farthest)": "no case has a bucket that begins "
        "at its farthest distance; tests/scores/test_t5_bucket.py has",
        "_begins: bucket <= exact -> bucket < exact": "at bucket = exact there are no steps, and both ways of asking "
        "are whether distance >= exact",
    },
    "pair_bias": {
        "unsupported_by: self.bias.numel() <= LARGEST_INDEX -> self.bias.numel() < LARGEST_INDEX": ANY_TABLE_THAT_FITS,
    },
    "forgetting": {
        "score_mod: backend == 'eager' -> backend != 'eager'": "chooses the precision of sums of float64 gates",
        "score_mod: self.log_gates.dtype if backend == 'eager' else torch.float32 -> "
        "self.log_gates.dtype if not backend == 'eager' else torch.float32": "chooses the precision of sums of "
        "float64 gates",
    },
}
