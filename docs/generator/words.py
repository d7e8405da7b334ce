"""The words by which pages name times, passes and sizes."""

from __future__ import annotations

from benchmarks.attention.cases import USUAL_CASE, Shape
from benchmarks.attention.report import TITLES

AS_GRAPH, AS_CALLED = "graph_rounds_ms", "rounds_ms"
"""The times of a record: of a replayed CUDA graph, and of calls as a user makes them."""

HOW = {AS_GRAPH: "device time", AS_CALLED: "as called"}
"""Their names, in the order in which pages give them."""

HOW_EXPLAINED = (
    "*Device time* is what the card takes for the work, measured as a replayed CUDA graph. *As called* is what a "
    "program gets that queues its calls from Python: a short kernel then takes as long as the host needs for a call."
)

NO_OTHER = "no other has a time"
"""What is said of a time that is not the least of several."""

ALIKE = 0.03
"""Times that differ by no more are called alike."""

FORWARD, BOTH = "forward", "forward_backward"
PASSES = (FORWARD, BOTH)
"""The passes of which pages say which way is fastest: of a model in use, and of one in training."""


def unusual(case: str) -> str:
    """The name of a case; nothing if it is the usual one."""
    return "" if case == USUAL_CASE else case


def passed(what: str) -> str:
    """The name of a pass inside a sentence."""
    return TITLES[what].lower()


def lengths(shape: Shape) -> str:
    """Numbers of queries and keys, once if they are equal."""
    return f"{shape.q_len:,}" if shape.q_len == shape.kv_len else f"{shape.q_len:,} x {shape.kv_len:,}"


def tokens(shape: Shape) -> str:
    """Lengths and batch size."""
    return f"{lengths(shape)}, B={shape.B}"


def heads(shape: Shape) -> str:
    """Heads, their size and the dtype."""
    number = f"Hq={shape.Hq}" if shape.Hq == shape.Hkv else f"Hq={shape.Hq} Hkv={shape.Hkv}"
    return f"{number} D={shape.head_dim} {shape.dtype}"
