"""One generated kernel a rule: the states of all tiles in a launch or two, undecided tiles settled on the device.

The calculus of `tiles` evaluates a rule operation by operation, which on a GPU costs a launch each and a wait for what
is left unknown. Here the same calculus runs once per *form* of a rule on symbols (`claims`), and what it did is written
down as Triton (`expressions`, `points`, `source`). Nothing of the calculus is said twice: the modules of `tiles` remain
its only text and its oracle.

A form (`form`) is what a rule computes without the values it computes with: operations, dtypes, signs of numbers.
Values and tables are arguments of the kernel, so that a new window or new documents compile nothing. A rule whose code
was seen before has its form looked up (`recalled_forms`). Kernels are compiled in the background (`compiled`); until
one is there, and for operations that have no kernel, the calculus of `tiles` answers.

Two kernels a rule: `leaves` reduces what depends on one position to values per tile; `states` evaluates the joint
tier on rectangles of tiles, first as a whole, and settles what is unknown by evaluating the rule at the positions of
the tile. Their result is two packed planes of codes, by rows and by columns, which `kernels.packed_lists` turns into
block lists.
"""

from attn_mods.fused.compiled import available, kernels, located
from attn_mods.fused.lists import lists_of_planes
from attn_mods.fused.planes import Planes, fused_planes, planes_of_call
from attn_mods.fused.recalled_forms import recall

__all__ = ["Planes", "available", "fused_planes", "kernels", "lists_of_planes", "located", "planes_of_call", "recall"]
