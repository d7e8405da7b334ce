"""What is often said of SDPA and FlashAttention, and what the records say."""

from __future__ import annotations

from collections.abc import Sequence

from docs.generator.comparison import OWN_CHOICE, Comparison, speedups
from docs.generator.words import ALIKE, AS_CALLED, AS_GRAPH, BOTH, FORWARD, HOW, PASSES, passed

PACKAGES = ("flash3", "flash4")
KERNELS = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa_math")
Found = list[tuple[float, Comparison]]
NOT_MEASURED = "Not measured."


def claims(here: Sequence[Comparison]) -> list[tuple[str, str]]:
    """What is said, and what is so on one card."""
    return [
        ("All of them return the same.", same(here)),
        ("FlashAttention is faster than SDPA.", faster(here)),
        ("SDPA takes its fastest kernel by itself.", takes_fastest(here)),
        ("FlashAttention saves 80 % of the memory.", memory(here)),
        ("`torch.compile` makes attention written as three steps as fast as SDPA.", three_steps(here)),
    ]


def same(here: Sequence[Comparison]) -> str:
    """How far outputs are from the truth."""
    gates = [row["gate"] for one in here for row in one.measured.rows if row["status"] == "ok"]
    if not gates:
        return NOT_MEASURED
    shares = [gate["out_error"] / gate["out_allowed"] for gate in gates]
    return (
        "Up to rounding, not to the bit. An output may be off from float64 by twice the error of dense attention in "
        f"the same dtype; the ways here use {min(shares):.0%} to {max(shares):.0%} of that."
    )


def faster(here: Sequence[Comparison]) -> str:
    """The faster of the packages to SDPA's own choice."""
    compared = [
        _counted(f"{HOW[AS_GRAPH]}, {passed(what)}", speedups(here, what, AS_GRAPH, PACKAGES, (OWN_CHOICE,)))
        for what in PASSES
    ]
    called = speedups(here, FORWARD, AS_CALLED, PACKAGES, (OWN_CHOICE,))
    with_checks = f"{HOW[AS_CALLED]}, {passed(FORWARD)}, where the packages also pay for the checks of `attention`"
    compared.append(_counted(with_checks, called))
    return f"The faster of `flash3` and `flash4` against `{OWN_CHOICE}`. {' '.join(filter(None, compared))}"


def takes_fastest(here: Sequence[Comparison]) -> str:
    """SDPA's own choice to the fastest of its kernels, by device time, since those pay for the checks of attention."""
    sentences = [f"`{OWN_CHOICE}` against the fastest of its four kernels, {HOW[AS_GRAPH]}."]
    for what in PASSES:
        with_it = [one for one in here if f"sdpa_{one.own_kernel()}" in one.times(what, AS_GRAPH)]
        found = speedups(with_it, what, AS_GRAPH, (OWN_CHOICE,), KERNELS)
        if found:
            as_fast = sum(value >= 1 - ALIKE for value, _ in found)
            worst = f"at worst {_linked(_least(found), 'x')} as fast"
            sentences.append(f"{passed(what).capitalize()}: as fast in {as_fast} of {len(found)} cases, {worst}.")
            without = len(speedups(here, what, AS_GRAPH, (OWN_CHOICE,), (OWN_CHOICE,))) - len(found)
            sentences += [f"Of {without} more its kernel has no time of its own here."] if without else []
    return " ".join(sentences)


def memory(here: Sequence[Comparison]) -> str:
    """FlashAttention-2 to a kernel that holds the matrix, and to SDPA's own choice."""
    sentences = [f"Memory of `sdpa_flash` beyond the inputs, {passed(BOTH)}."]
    saved = _saved(here, "sdpa_math")
    if saved:
        least, most = _linked(_least(saved), " %", 0), _linked(_most(saved), " %", 0)
        sentences.append(f"Against `sdpa_math`, which holds the matrix of scores, it saves {least} to {most}.")
    to_own = _saved(here, OWN_CHOICE)
    if to_own:
        less = sum(value > 0 for value, _ in to_own)
        least, most = (_linked((1 - value / 100, one), "x") for value, one in (_most(to_own), _least(to_own)))
        sentences.append(
            f"Against `{OWN_CHOICE}` it takes {least} to {most} as much; less in {less} of {len(to_own)} cases."
        )
    return " ".join(sentences)


def three_steps(here: Sequence[Comparison]) -> str:
    """Three steps as one writes them, and with softmax in float32, compiled, to SDPA."""
    sentences = []
    found = speedups(here, FORWARD, AS_GRAPH, ("three_steps",), (OWN_CHOICE,))
    if found:
        recognised = sum(one.rows(FORWARD)["three_steps"]["kernel"] == "sdpa" for _, one in found)
        sentences.append(
            "Written in the dtype of the inputs, with the mask as a matrix that is added, it is recognised by the "
            f"compiler, which calls SDPA, in {recognised} of {len(found)} cases; {_against_own_choice(found)}."
        )
    found = speedups(here, FORWARD, AS_GRAPH, ("unfused",), (OWN_CHOICE,))
    if found:
        held = sum(_holds_matrix(one) for _, one in found)
        sentences.append(
            f"With softmax in float32, {_against_own_choice(found)}. In {held} of {len(found)} cases it "
            "takes memory for the whole matrix of scores."
        )
    return " ".join(sentences) or NOT_MEASURED


def _against_own_choice(found: Found) -> str:
    least, most = _linked(_least(found), "x"), _linked(_most(found), "x")
    return f"{passed(FORWARD)}, {HOW[AS_GRAPH]}: {least} to {most} as fast as `{OWN_CHOICE}`"


def how_sure(here: Sequence[Comparison]) -> str:
    """How far two measurements of the same work are apart: SDPA's own choice, and SDPA held to that kernel."""
    sentences = []
    for times, how in HOW.items():
        found = []
        for one in here:
            timed = one.times(FORWARD, times)
            own = f"sdpa_{one.own_kernel()}"
            if one.shape.Hq == one.shape.Hkv and {own, OWN_CHOICE} <= timed.keys():
                found.append((timed[OWN_CHOICE] / timed[own], one))
        if found:
            sentences.append(f"{how} {_linked(_least(found), 'x')} to {_linked(_most(found), 'x')}")
    if not sentences:
        return "How sure these times are was not measured."
    return (
        f"How sure these times are: `{OWN_CHOICE}`, and SDPA held to the kernel that it takes, do the same work on "
        f"the card. Forward, the first took of the second's time: {'; '.join(sentences)}. Two things set them apart: a "
        "call of `attention` costs the host more, and a card that has just been busy runs slower, so that it matters "
        "what was timed before. Between two ways, differences smaller than these mean little."
    )


def _saved(here: Sequence[Comparison], other: str) -> Found:
    """Per cent of the memory of another way that sdpa_flash does without."""
    peaks = [(one.peaks(BOTH), one) for one in here]
    return [
        (100 * (1 - of_one["sdpa_flash"] / of_one[other]), one)
        for of_one, one in peaks
        if "sdpa_flash" in of_one and of_one.get(other)
    ]


def _holds_matrix(one: Comparison) -> bool:
    shape = one.shape
    return one.peaks(FORWARD).get("unfused", 0) >= shape.B * shape.Hq * shape.q_len * shape.kv_len * 2


def _counted(title: str, found: Found) -> str:
    if not found:
        return ""
    more, less = sum(value > 1 + ALIKE for value, _ in found), sum(value < 1 - ALIKE for value, _ in found)
    least, most = _linked(_least(found), "x"), _linked(_most(found), "x")
    counts = f"faster in {more} and slower in {less} of {len(found)} cases"
    return f"{title[0].upper()}{title[1:]}: {counts}, {least} to {most} as fast."


def _least(found: Found) -> tuple[float, Comparison]:
    return min(found, key=lambda pair: pair[0])


def _most(found: Found) -> tuple[float, Comparison]:
    return max(found, key=lambda pair: pair[0])


def _linked(pair: tuple[float, Comparison], unit: str, digits: int = 2) -> str:
    value, one = pair
    return f"{value:.{digits}f}{unit} ({one.link})"
