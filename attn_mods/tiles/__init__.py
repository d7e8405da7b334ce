"""The tile calculus: the exact BlockMask of any rule, without evaluating it at all query-key pairs.

A rule (a mask_mod) is run once, on stand-ins for b, h, q_idx and kv_idx that record every torch operation (`trace`) as
a graph of nodes (`graph`; `operations` and `normalise` hold the names). The graph is then evaluated in two tiers.

One-variable tier. A node of q_idx alone or of kv_idx alone (b and h besides) is computed by the real torch operation
at every position: O(Q) + O(KV) work, any operation, exact (`pointwise`). Where it meets the other variable it is
reduced to its smallest and largest value on each tile of the grid (`grid`, `leaves`).

Joint tier. A node of both is an interval per tile (`interval`, `division`, `lookup`, `trailing_axes`), a boolean one a
truth: true everywhere, true somewhere, certainly both (`comparison`, `boolean`; `values` defines the two). One small
function an operation, found by its name in the table of `joint`. Two facts make most tiles certain: *attained*, both
ends of the interval are values at some positions of the tile; and *connected*, so is every integer between. They hold
for a node only if its operands share no position variable, so that any two of their values meet.

The result is one state a tile (`states`): EMPTY, FULL, MIXED or UNKNOWN. A state other than UNKNOWN is always true;
what the calculus does not know (an operation, a possible overflow, an exception) is UNKNOWN. `calculus` evaluates
bands of tiles, and at length large tiles before small ones. `analysis` settles what is UNKNOWN: first a few sampled
positions (`scanning`), of which a kept and a dropped one prove MIXED; then the calculus on parts of the tile
(`refining`); then position by position, under the nest of vmaps that torch uses, the parts that are left.

Reading order: `grid` and `states` (what goes in and out), `trace` (a rule becomes a graph), `leaves` (its one-variable
nodes become values per tile), `joint` (its operations on those), `calculus` (over the whole grid), `analysis` (what is
still unknown). Each other module is one operation or one step of these.

`tile_states` is the calculus alone, `analyse` the exact states, `resolve` the exact states given some. An error of the
rule itself surfaces from the scan as the rule raised it; a rule that is no mask_mod is refused with advice (`rule`).
"""

from attn_mods.tiles.analysis import Analysis, analyse, resolve, tile_states
from attn_mods.tiles.grid import Grid
from attn_mods.tiles.rule import RuleError
from attn_mods.tiles.states import EMPTY, FULL, MIXED, UNKNOWN, States

__all__ = [
    "EMPTY",
    "FULL",
    "MIXED",
    "UNKNOWN",
    "Analysis",
    "Grid",
    "RuleError",
    "States",
    "analyse",
    "resolve",
    "tile_states",
]
