"""The pages on performance, from committed benchmark records."""

from __future__ import annotations

from collections.abc import Iterator


def performance_pages() -> Iterator[tuple[str, str]]:
    """Path below the performance folder and text of every page."""
    yield (
        "index.md",
        "# Performance\n\nNo record of attention is shown here yet. `python -m benchmarks run causal` measures where "
        "you are; [how it is measured](../how_measured.md) says what the numbers mean.\n",
    )
