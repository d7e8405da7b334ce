"""Times as an inline SVG: a row a backend, a mark a length, on a logarithmic axis, in the colour of the text around."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bars import digits

LEFT, WIDTH, RIGHT = 118, 470, 22
TOP, ROW, BOTTOM = 26, 22, 30
MOST_APART = 112


@dataclass(frozen=True)
class Marker:
    """How the dots of one length look: by shape and, the longer the larger, by size.

    Attributes:
        name: What it is called to those who do not see it.
        path: Its outline around (0, 0), as an SVG path.
    """

    name: str
    path: str

    def at(self, x: float, y: float) -> str:
        """The attributes of an element that draws it there."""
        return f'class="am-chart-dot" transform="translate({x} {y})" d="{self.path}"'


MARKERS = (
    Marker("circle", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    Marker("square", "M-4 -4h8v8h-8z"),
    Marker("diamond", "M0 -6.5L6.5 0L0 6.5L-6.5 0z"),
    Marker("triangle", "M0 -6.5L7 5.5H-7z"),
    Marker("cross", "M-2.5 -7h5v4.5h4.5v5h-4.5v4.5h-5v-4.5h-4.5v-5h4.5z"),
    Marker("triangle pointing down", "M0 6.5L7 -5.5H-7z"),
    Marker("wide bar", "M-8 -3h16v6h-16z"),
    Marker("tall bar", "M-3 -8h6v16h-6z"),
)
"""Of the lengths of a chart, the shortest first: as many as all suites have."""


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

    Raises:
        ValueError: There are more lengths than markers.
    """
    markers = _markers(sorted({length for of_backend in dots.values() for length in of_backend}))
    axis = _Axis([dot for of_backend in dots.values() for dot in of_backend.values()])
    rows = sorted(dots, key=lambda name: (-max(dots[name]), dots[name][max(dots[name])].median))
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [
        f'<svg class="am-chart" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img" '
        f'aria-label="{html.escape(label)}">',
        f"<desc>{_described(markers)}</desc>",
        *_legend(markers),
        *_grid(axis, height - BOTTOM),
        *(part for number, name in enumerate(rows) for part in _row(name, dots[name], markers, axis, number)),
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


def _markers(lengths: Sequence[int]) -> dict[int, Marker]:
    if len(lengths) > len(MARKERS):
        raise ValueError(f"a chart tells {len(MARKERS)} lengths apart, not {len(lengths)}; add a marker to MARKERS")
    return dict(zip(lengths, MARKERS, strict=False))


def _described(markers: Mapping[int, Marker]) -> str:
    """The legend in words."""
    return "; ".join(f"{marker.name}: {length:,} tokens" for length, marker in markers.items())


def _legend(markers: Mapping[int, Marker]) -> Iterator[str]:
    apart = min(MOST_APART, (WIDTH + RIGHT) // len(markers))
    unit = " tokens" if apart == MOST_APART else ""
    for number, (length, marker) in enumerate(markers.items()):
        x = LEFT + apart * number
        yield f"<path {marker.at(x + 6, 9)}/>"
        yield f'<text class="am-chart-axis" x="{x + 17}" y="13">{length:,}{unit}</text>'


def _grid(axis: _Axis, bottom: int) -> Iterator[str]:
    for tick in axis.ticks():
        x = axis.x(tick)
        yield f'<path class="am-chart-line" d="M{x} {TOP}V{bottom}"/>'
        yield f'<text class="am-chart-axis" x="{x}" y="{bottom + 13}" text-anchor="middle">{tick:g}</text>'


def _row(name: str, dots: Mapping[int, Dot], markers: Mapping[int, Marker], axis: _Axis, number: int) -> Iterator[str]:
    y = TOP + ROW * number + ROW // 2
    yield f'<text class="am-chart-name" x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
    for length, dot in sorted(dots.items()):
        spoken = f"{name}, {length:,} tokens: {digits(dot.median)} ms"
        yield f'<path class="am-chart-spread" d="M{axis.x(dot.low)} {y}H{axis.x(dot.high)}"/>'
        yield f"<path {markers[length].at(axis.x(dot.median), y)}><title>{html.escape(spoken)}</title></path>"
