"""A limit on how long something may take, for what cannot be asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the time is over; other threads have no such limit.

    Whatever the interrupted code makes of that error, as a compiler does that wraps it in its own, comes out as it.

    Args:
        seconds: How long it may take.
        what: What the error says of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over, message = False, f"{what} within {seconds:g} s"

    def ring(*_: object) -> None:
        nonlocal over
        over = True
        raise TimeoutError(message)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Exception as error:
        if over and not isinstance(error, TimeoutError):
            raise TimeoutError(message) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
