"""Whose turn it is on a card that several processes share: many compile at a time, one alone is timed.

The locks are files, which a process that dies gives back.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Turns:
    """The locks of one run; without a folder this process is the only one.

    Attributes:
        folder: Where the locks are.
    """

    folder: Path | None = None

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """While work goes on that disturbs a time, and is not timed itself."""
        with self._locked("times", fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While nothing else goes on."""
        self.say_ready()
        with self._locked("times", fcntl.LOCK_EX):
            yield

    def say_ready(self) -> None:
        """Say that this process has come to its times or has something to tell, and is not to be ended."""
        if self.folder is not None:
            with self._locked("ready", fcntl.LOCK_EX):
                self._marker(os.getpid()).touch()

    def end_unless_ready(self, process: BaseProcess) -> bool:
        """End a process that runs, unless it has said that it is ready; whether this ended it."""
        with self._locked("ready", fcntl.LOCK_EX):
            if self.folder is None or not process.is_alive() or self._marker(process.ident).exists():
                return False
            process.kill()
        process.join()
        return True

    def _marker(self, process: int | None) -> Path:
        assert self.folder is not None
        return self.folder / f"ready-{process}"

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """While the card is busy with what need not be alone on the machine: a choice among kernels."""
        with self._locked("card", fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        with (self.folder / name).open("w") as lock:
            fcntl.flock(lock, how)
            yield


def choose_kernels_in_turn(turns: Turns) -> None:
    """Have the compiler time the kernels it chooses among one process at a time."""
    from torch._inductor.runtime.benchmarking import benchmarker  # imports the whole compiler

    timed = benchmarker.benchmark_gpu

    def in_turn(*arguments: Any, **keywords: Any) -> Any:
        with turns.one_at_a_time():
            return timed(*arguments, **keywords)

    benchmarker.benchmark_gpu = in_turn  # type: ignore[method-assign]  # torch's own is timed in turn
