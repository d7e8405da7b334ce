"""Times as an inline SVG: a row a backend, a dot a length, on a logarithmic axis, in the colour of the text around."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bars import digits

LEFT, WIDTH, RIGHT = 118, 470, 22
TOP, ROW, BOTTOM = 26, 22, 30
RADII = (3, 4, 5, 6)


@dataclass(frozen=True)
class Dot:
    """The time of one backend at one length.

    Attributes:
        median: Milliseconds.
        low: The 10th percentile.
        high: The 90th percentile.
    """

    median: float
    low: float
    high: float


def chart(dots: Mapping[str, Mapping[int, Dot]], label: str) -> str:
    """A dot plot, the backend that is fastest at its greatest length on top.

    Args:
        dots: By backend and length.
        label: What a screen reader says; the numbers stand in a table beside it.
    """
    lengths = sorted({length for of_backend in dots.values() for length in of_backend})
    axis = _Axis([dot for of_backend in dots.values() for dot in of_backend.values()])
    rows = sorted(dots, key=lambda name: (-max(dots[name]), dots[name][max(dots[name])].median))
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [
        f'<svg class="am-chart" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img" '
        f'aria-label="{html.escape(label)}">',
        *_legend(lengths),
        *_grid(axis, height - BOTTOM),
        *(part for number, name in enumerate(rows) for part in _row(name, dots[name], lengths, axis, number)),
        f'<text class="am-chart-axis" x="{LEFT + WIDTH}" y="{height - 4}" text-anchor="end">milliseconds</text>',
        "</svg>",
    ]
    return "".join(parts)


class _Axis:
    def __init__(self, dots: Sequence[Dot]) -> None:
        self.low = math.log10(min(dot.low for dot in dots)) - 0.05
        self.high = math.log10(max(dot.high for dot in dots)) + 0.05

    def x(self, milliseconds: float) -> float:
        share = (math.log10(milliseconds) - self.low) / (self.high - self.low)
        return round(LEFT + WIDTH * share, 1)

    def ticks(self) -> Iterator[float]:
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for step in (1, 2, 5):
                if self.low <= math.log10(step * 10.0**power) <= self.high:
                    yield step * 10.0**power


def _radius(length: int, lengths: Sequence[int]) -> int:
    return RADII[min(lengths.index(length), len(RADII) - 1)]


def _legend(lengths: Sequence[int]) -> Iterator[str]:
    x = LEFT
    for length in lengths:
        radius = _radius(length, lengths)
        yield f'<circle class="am-chart-dot" cx="{x + radius}" cy="9" r="{radius}"/>'
        yield f'<text class="am-chart-axis" x="{x + 16}" y="13">{length:,} tokens</text>'
        x += 112


def _grid(axis: _Axis, bottom: int) -> Iterator[str]:
    for tick in axis.ticks():
        x = axis.x(tick)
        yield f'<path class="am-chart-line" d="M{x} {TOP}V{bottom}"/>'
        yield f'<text class="am-chart-axis" x="{x}" y="{bottom + 13}" text-anchor="middle">{tick:g}</text>'


def _row(name: str, dots: Mapping[int, Dot], lengths: Sequence[int], axis: _Axis, number: int) -> Iterator[str]:
    y = TOP + ROW * number + ROW // 2
    yield f'<text class="am-chart-name" x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
    for length, dot in sorted(dots.items()):
        x = axis.x(dot.median)
        spoken = f"{name}, {length:,} tokens: {digits(dot.median)} ms"
        yield f'<path class="am-chart-spread" d="M{axis.x(dot.low)} {y}H{axis.x(dot.high)}"/>'
        yield (
            f'<circle class="am-chart-dot" cx="{x}" cy="{y}" r="{_radius(length, lengths)}">'
            f"<title>{html.escape(spoken)}</title></circle>"
        )
