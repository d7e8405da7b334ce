"""Who is timed is alone; who compiles is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.attention.turns import Turns

SHORT = 0.2


def enters_while(held: AbstractContextManager[None], wanted: Callable[[], AbstractContextManager[None]]) -> bool:
    """Whether another thread comes in while a lock is held."""
    entered = threading.Event()

    def other() -> None:
        with wanted():
            entered.set()

    thread = threading.Thread(target=other, daemon=True)
    with held:
        thread.start()
        came_in = entered.wait(SHORT)
    thread.join(10)
    assert entered.is_set()
    return came_in


@pytest.mark.parametrize(
    ("held", "wanted", "together"),
    [
        ("beside_others", "beside_others", True),
        ("beside_others", "alone", False),
        ("alone", "beside_others", False),
        ("alone", "alone", False),
        ("one_at_a_time", "one_at_a_time", False),
        ("one_at_a_time", "beside_others", True),
    ],
)
def test_locks(held: str, wanted: str, together: bool, tmp_path: Path) -> None:
    first, second = Turns(tmp_path), Turns(tmp_path)
    assert enters_while(getattr(first, held)(), getattr(second, wanted)) == together


def test_without_a_folder_nobody_waits() -> None:
    turns = Turns()
    assert enters_while(turns.alone(), turns.alone)
