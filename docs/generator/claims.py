"""What is often said of SDPA and FlashAttention, and what the records say."""

from __future__ import annotations

from collections.abc import Sequence

from docs.generator.comparison import OWN_CHOICE, Comparison, speedups
from docs.generator.records import AS_CALLED, AS_GRAPH

PACKAGES = ("flash3", "flash4")
KERNELS = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math")
ALIKE = 0.03
"""Times that differ by no more are called alike."""

Found = list[tuple[float, Comparison]]
NOT_MEASURED = "Not measured."
PASSES = {"forward": "Forward", "forward_backward": "Training step"}


def claims(here: Sequence[Comparison]) -> list[tuple[str, str]]:
    """What is said, and what is so on one card."""
    return [
        ("All of them return the same.", same(here)),
        ("FlashAttention is faster than SDPA.", faster(here)),
        ("SDPA takes its fastest kernel by itself.", takes_fastest(here)),
        ("FlashAttention saves 80 % of the memory.", memory(here)),
        ("`torch.compile` makes attention of three steps as fast.", unfused(here)),
    ]


def same(here: Sequence[Comparison]) -> str:
    """How far outputs are from the truth."""
    gates = [row["gate"] for one in here for row in one.measured.rows if row["status"] == "ok"]
    if not gates:
        return NOT_MEASURED
    shares = [gate["out_error"] / gate["out_allowed"] for gate in gates]
    return (
        "Up to rounding, not to the bit. Outputs may be off from float64 by twice what dense attention in the same "
        f"dtype is; the ways here are off by {min(shares):.0%} to {max(shares):.0%} of that."
    )


def faster(here: Sequence[Comparison]) -> str:
    """The faster of the packages to SDPA's own choice."""
    sentences = [
        _counted(title, speedups(here, what, AS_GRAPH, PACKAGES, (OWN_CHOICE,))) for what, title in PASSES.items()
    ]
    called = speedups(here, "forward", AS_CALLED, PACKAGES, (OWN_CHOICE,))
    sentences.append(_counted("Forward as called, where the packages pay for the checks of `attention` too", called))
    return (
        f"The faster of `flash3` and `flash4` to SDPA's own choice, as CUDA graphs. {' '.join(filter(None, sentences))}"
    )


def takes_fastest(here: Sequence[Comparison]) -> str:
    """SDPA's own choice to the fastest of its kernels, as graphs, since those pay for the checks of attention."""
    sentences = []
    for what, title in PASSES.items():
        found = speedups(here, what, AS_GRAPH, (OWN_CHOICE,), KERNELS)
        if found:
            as_fast = sum(value >= 1 - ALIKE for value, _ in found)
            sentences.append(f"{title}: in {as_fast} of {len(found)}; at worst {_linked(_least(found), 'x')} as fast.")
    return f"As fast as the fastest of its kernels, as CUDA graphs. {' '.join(sentences)}"


def memory(here: Sequence[Comparison]) -> str:
    """FlashAttention-2 to a kernel that holds the matrix, and to SDPA's own choice."""
    sentences = ["`sdpa_flash` in a training step, beyond the inputs."]
    saved = _saved(here, "sdpa_math")
    if saved:
        least, most = _linked(_least(saved), " %", 0), _linked(_most(saved), " %", 0)
        sentences.append(f"To a kernel that holds the matrix of scores it saves {least} to {most}, more the longer.")
    to_own = _saved(here, OWN_CHOICE)
    if to_own:
        less = sum(value > 0 for value, _ in to_own)
        least, most = (_linked((1 - value / 100, one), "x") for value, one in (_most(to_own), _least(to_own)))
        sentences.append(f"To SDPA's own choice it takes {least} to {most} as much; less in {less} of {len(to_own)}.")
    return " ".join(sentences)


def unfused(here: Sequence[Comparison]) -> str:
    """Three steps with the mask as a matrix, compiled, to SDPA."""
    found = speedups(here, "forward", AS_GRAPH, ("unfused",), (OWN_CHOICE,))
    if not found:
        return NOT_MEASURED
    least, most = _linked(_least(found), "x"), _linked(_most(found), "x")
    held = sum(_holds_matrix(one) for _, one in found)
    return (
        "With softmax in float32, and the mask as a matrix to add, which is what was compiled here: forward, as a CUDA "
        f"graph, {least} to {most} as fast as SDPA; in {held} of {len(found)} with memory for the matrix of scores."
    )


def how_sure(here: Sequence[Comparison]) -> str:
    """How far two measurements of the same work are apart: SDPA's own choice, and SDPA held to that kernel."""
    sentences = []
    for times, title in ((AS_GRAPH, "as CUDA graphs"), (AS_CALLED, "as called")):
        found = []
        for one in here:
            timed = one.times("forward", times)
            own = f"sdpa_{one.own_kernel()}"
            if one.shape.Hq == one.shape.Hkv and {own, OWN_CHOICE} <= timed.keys():
                found.append((timed[OWN_CHOICE] / timed[own], one))
        if found:
            sentences.append(f"{title} {_linked(_least(found), 'x')} to {_linked(_most(found), 'x')}")
    if not sentences:
        return "How sure these times are was not measured."
    return (
        f"`{OWN_CHOICE}` and the kernel that it takes are the same work. Forward, one took of the other's time "
        f"{', and '.join(sentences)}. A call of `attention` costs the host more; and a card that has just been busy "
        "runs slower, so that it matters what was timed before. Smaller differences between two ways mean little."
    )


def _saved(here: Sequence[Comparison], other: str) -> Found:
    """Per cent of the memory of another way that sdpa_flash does without."""
    peaks = [(one.peaks("forward_backward"), one) for one in here]
    return [
        (100 * (1 - of_one["sdpa_flash"] / of_one[other]), one)
        for of_one, one in peaks
        if "sdpa_flash" in of_one and of_one.get(other)
    ]


def _holds_matrix(one: Comparison) -> bool:
    shape = one.shape
    return one.peaks("forward").get("unfused", 0) >= shape.B * shape.Hq * shape.q_len * shape.kv_len * 2


def _counted(title: str, found: Found) -> str:
    if not found:
        return ""
    more, less = sum(value > 1 + ALIKE for value, _ in found), sum(value < 1 - ALIKE for value, _ in found)
    least, most = _linked(_least(found), "x"), _linked(_most(found), "x")
    return f"{title}: faster in {more}, slower in {less} of {len(found)}; {least} to {most} as fast."


def _least(found: Found) -> tuple[float, Comparison]:
    return min(found, key=lambda pair: pair[0])


def _most(found: Found) -> tuple[float, Comparison]:
    return max(found, key=lambda pair: pair[0])


def _linked(pair: tuple[float, Comparison], unit: str, digits: int = 2) -> str:
    value, one = pair
    return f"{value:.{digits}f}{unit} ({one.link})"
