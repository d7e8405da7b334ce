"""Claims say what made-up records say, whichever way those go."""

from __future__ import annotations

from typing import Any

from benchmarks.attention.report import Measured
from docs.generator import claims
from docs.generator.comparison import Comparison

SHAPE = {"B": 1, "Hq": 2, "Hkv": 2, "q_len": 64, "kv_len": 64, "head_dim": 16, "dtype": "bfloat16"}
MATRIX = 2 * 64 * 64 * 2


def row(way: str, what: str, graph: float, called: float, peak: int, share: float = 0.5) -> dict[str, Any]:
    gate = {"out_error": share, "out_allowed": 1.0}
    times = {"rounds_ms": [[called] * 2] * 3, "graph_rounds_ms": [[graph] * 2] * 3}
    made = {"backend": way, "what": what, "status": "ok", "peak_bytes": peak, "gate": gate, "shape": SHAPE}
    kernel = {"sdpa_default": "cudnn", "three_steps": "sdpa"}
    return made | times | {"recipe": "causal"} | ({"kernel": kernel[way]} if way in kernel else {})


def comparison(length: int, **ways: tuple[float, float, int]) -> Comparison:
    """One size, each way with its time as a graph, as called, and its memory."""
    shape = {"shape": SHAPE | {"q_len": length, "kv_len": length}}
    rows = [row(way, what, *of_way) | shape for way, of_way in ways.items() for what in ("forward", "forward_backward")]
    return Comparison("Card", Measured(tuple(rows)))


SMALL = comparison(
    64,
    sdpa_default=(2.0, 2.0, 100),
    sdpa_cudnn=(2.0, 4.0, 100),
    sdpa_flash=(1.0, 5.0, 50),
    sdpa_math=(8.0, 8.0, 1000),
    flash3=(4.0, 9.0, 10),
    flash4=(3.0, 8.0, 10),
    unfused=(4.0, 4.0, MATRIX),
    three_steps=(1.0, 1.0, 10),
)
LARGE = comparison(
    128,
    sdpa_default=(2.0, 2.0, 100),
    sdpa_cudnn=(2.5, 1.0, 100),
    sdpa_math=(8.0, 8.0, 1000),
    sdpa_flash=(2.0, 2.0, 200),
    flash4=(1.0, 1.0, 10),
    unfused=(1.0, 1.0, 10),
)
BOTH = [SMALL, LARGE]


def test_same() -> None:
    assert "use 50% to 50% of that" in claims.same(BOTH)
    one = Comparison("Card", Measured((row("flash4", "forward", 1.0, 1.0, 1, share=0.125),)))
    assert "use 12% to 50% of that" in claims.same([*BOTH, one])
    assert claims.same([]) == "Not measured."


def test_faster() -> None:
    said = claims.faster(BOTH)
    small, large = f"0.67x ({SMALL.link})", f"2.00x ({LARGE.link})"
    counts = "faster in 1 and slower in 1 of 2 cases"
    assert f"Device time, forward: {counts}, {small} to {large} as fast." in said
    assert f"Device time, forward and backward: {counts}, {small} to {large} as fast." in said
    assert f"of `attention`: {counts}, 0.25x ({SMALL.link}) to 2.00x ({LARGE.link}) as fast." in said
    assert "faster in 2 and slower in 0 of 2 cases" in claims.faster([LARGE, LARGE])


def test_takes_fastest() -> None:
    said = claims.takes_fastest(BOTH)
    assert f"Forward: as fast in 1 of 2 cases, at worst 0.50x ({SMALL.link}) as fast." in said
    assert "Forward: as fast in 1 of 1" in claims.takes_fastest([LARGE])
    assert "no time of its own" not in said
    without_its_kernel = comparison(256, sdpa_default=(1.0, 1.0, 100), sdpa_math=(8.0, 8.0, 100))
    said = claims.takes_fastest([*BOTH, without_its_kernel])
    assert "Forward: as fast in 1 of 2 cases" in said and "Of 1 more its kernel has no time of its own here." in said


def test_memory() -> None:
    said = claims.memory(BOTH)
    assert f"it saves 80 % ({LARGE.link}) to 95 % ({SMALL.link})" in said
    assert f"it takes 0.50x ({SMALL.link}) to 2.00x ({LARGE.link}) as much; less in 1 of 2 cases." in said


def test_three_steps() -> None:
    said = claims.three_steps(BOTH)
    assert "calls SDPA, in 1 of 1 cases; forward, device time: 2.00x" in said
    assert f"0.50x ({SMALL.link}) to 2.00x ({LARGE.link}) as fast as `sdpa_default`. In 1 of 2 cases" in said
    assert "recognised" not in claims.three_steps([LARGE])
    assert claims.three_steps([comparison(64, sdpa_default=(1.0, 1.0, 1))]) == "Not measured."


def test_how_sure() -> None:
    said = claims.how_sure(BOTH)
    assert f"device time 0.80x ({LARGE.link}) to 1.00x ({SMALL.link})" in said
    assert f"as called 0.50x ({SMALL.link}) to 2.00x ({LARGE.link})" in said
    assert claims.how_sure([]) == "How sure these times are was not measured."
