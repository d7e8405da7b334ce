"""What explain() returns: a table of the backends, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from attn_mods.backends import Reason

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Row:
    """One backend.

    Attributes:
        backend: Its name.
        reason: Why it does not compute the call; None if it does.
        chosen: Whether ``attention`` would run it.
        measured: How long it took on this kind of card, in the nearest case that was measured.
    """

    backend: str
    reason: Reason | None
    chosen: bool
    measured: str = NOT_MEASURED

    @property
    def runs(self) -> bool:
        """Whether it computes the call."""
        return self.reason is None


@dataclass(frozen=True)
class Explanation:
    """One row a backend; prints as a table.

    Attributes:
        recipe: Name of the recipe.
        device: Where q is.
        rows: The backends.
        note: How the choice was made.
    """

    recipe: str
    device: str
    rows: tuple[Row, ...]
    note: str

    @property
    def chosen(self) -> str | None:
        """The backend ``attention`` would run, or None if it would raise."""
        return next((row.backend for row in self.rows if row.chosen), None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.recipe} on {self.device}", title_justify="left", caption=self.note)
        table.caption_justify = "left"
        for column in ("backend", "would run", "why not", "measured"):
            table.add_column(column)
        for row in self.rows:
            runs = "chosen" if row.chosen else "yes" if row.runs else "no"
            style = "bold green" if row.chosen else None if row.runs else "dim"
            table.add_row(row.backend, runs, str(row.reason or ""), row.measured, style=style)
        yield table

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()
