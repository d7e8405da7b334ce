"""What axe says of a page as it stands in the browser."""

from __future__ import annotations

from typing import Any

GRAVE = ("serious", "critical")


def grave_problems(page: Any, colours: bool = True) -> list[str]:
    """The problems that keep someone from using the page, each with the first place where it is.

    Args:
        page: The page.
        colours: Whether contrast is looked at, which takes three quarters of the time.
    """
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": colours}}}
    found = Axe().run(page, options=options).response["violations"]
    return [_described(problem) for problem in found if problem["impact"] in GRAVE]


def _described(problem: Any) -> str:
    nodes = problem["nodes"]
    return f"{problem['id']} ({len(nodes)}): {nodes[0]['html'][:160]} {nodes[0]['failureSummary']}"
