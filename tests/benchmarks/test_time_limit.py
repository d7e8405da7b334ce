"""A limit on time rings once, whatever is made of it, and leaves nothing behind."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from benchmarks.time_limit import within


def test_what_takes_longer_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"^not done within 0.05 s$"), within(0.05, "not done"):
        time.sleep(5)


def test_an_error_made_of_it_is_the_same() -> None:
    with pytest.raises(TimeoutError, match="not done within"), within(0.05, "not done"):
        try:
            time.sleep(5)
        except TimeoutError as error:
            raise RuntimeError("backend compiler failed") from error


def test_other_errors_are_as_they_were() -> None:
    with pytest.raises(ValueError, match="wrong"), within(5, "not done"):
        raise ValueError("wrong")


def test_nothing_rings_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with within(0.05, "not done"):
        pass
    time.sleep(0.1)
    assert signal.getsignal(signal.SIGALRM) is before


def test_another_thread_has_no_limit() -> None:
    done: list[bool] = []

    def work() -> None:
        with within(0.01, "not done"):
            time.sleep(0.1)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
