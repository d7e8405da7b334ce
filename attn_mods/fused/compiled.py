"""Triton functions compiled in the background and launched without asking again what they are called with."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")

MOST_MADE = 512
"""Most kernels kept; beyond, those that were not asked for the longest are forgotten."""

_POINTERS = {
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*u8",
}


def pointer(dtype: torch.dtype) -> str:
    """The type of a tensor argument in a signature."""
    return _POINTERS[dtype]


class Kernel:
    """One Triton function for one device, compiled for one signature.

    Args:
        function: What ``triton.jit`` made.
        signature: Type of each argument by name, "i64" for an integer.
        constants: Values of the arguments that are constants of the kernel, which come last.
        device: Where it runs.
        warps: Groups of 32 threads of one program.
    """

    def __init__(
        self,
        function: Any,
        signature: Mapping[str, str],
        constants: Mapping[str, int],
        device: torch.device,
        warps: int,
    ) -> None:
        self._function = function
        self._constants = dict(constants)
        self._device = device
        self._compiled: Any = None
        if not interpreted():
            self._compiled = _compile(function, signature, constants, device, warps)

    def launch(self, programs: tuple[int, int], *arguments: Any) -> None:
        """Start ``programs`` programs on the current stream of the device."""
        if self._compiled is None:
            self._function[programs](*arguments, **self._constants)
            return
        kernel, index = self._compiled, self._device.index
        stream = torch._C._cuda_getCurrentRawStream(index)
        if torch._C._cuda_getDevice() == index:
            self._start(kernel, programs, stream, arguments)
        else:
            with torch.cuda.device(index):
                self._start(kernel, programs, stream, arguments)

    def _start(self, kernel: Any, programs: tuple[int, int], stream: int, arguments: tuple[Any, ...]) -> None:
        kernel.run(
            *programs, 1, stream, kernel.function, kernel.packed_metadata, None, None, None,
            *arguments, *self._constants.values(),
        )  # fmt: skip


def located(device: torch.device | str) -> torch.device:
    """A device with its index."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on tensors of the CPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def available(device: torch.device) -> bool:
    """Whether there are kernels for a device."""
    if device.type == "cuda" and torch.version.hip is None:
        return True
    # Asked for every mask, so what costs nothing is asked first: importing Triton takes a second.
    is_wanted = device.type == "cpu" and bool(os.environ.get("TRITON_INTERPRET"))
    return is_wanted and _interpreter_installed() and interpreted()


@functools.cache
def _interpreter_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _compile(
    function: Any, signature: Mapping[str, str], constants: Mapping[str, int], device: torch.device, warps: int
) -> Any:
    import triton
    from triton.compiler import ASTSource

    types = {**signature, **dict.fromkeys(constants, "constexpr")}
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # the thread has a context from here on
        source = ASTSource(fn=function, signature=types, constexprs=dict(constants))
        kernel = triton.compile(source, options={"num_warps": warps})
        kernel._init_handles()
    return kernel


def functions_of(text: str, name: str) -> dict[str, Any]:
    """Run a generated module; its text is kept where Triton, which reads sources, finds it."""
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), space)
    return space


class _Made:
    """What is being made, and what became of it: None before, and if it failed."""

    __slots__ = ("finished", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.finished = threading.Event()


class Background:
    """What is made once, in a thread of its own, and used when it is there.

    Nothing is begun before ``start``: a thread that compiles would slow down what its caller does meanwhile.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def get(self, key: Hashable, make: Callable[[], T], name: str) -> T | None:
        """What ``make`` returned; None while it is being made, or if it failed, which is said once.

        Args:
            key: What it is.
            make: How it is made.
            name: What a warning calls it.
        """
        try:
            self._made.move_to_end(key)
            found: T | None = self._made[key].value
            return found
        except KeyError:  # not begun, or forgotten by another thread
            with self._lock:
                if key not in self._made:
                    self._made[key] = _Made()
                    if len(self._made) > MOST_MADE:
                        self._made.popitem(last=False)
                    self._waiting.append(functools.partial(_attempt, self._made[key], make, name))
            return None

    def start(self) -> None:
        """Begin what was asked for."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._executor = self._executor or ThreadPoolExecutor(1, "attn_mods")
            for attempt in waiting:
                self._executor.submit(attempt)

    def finish(self) -> None:
        """Make all that was asked for, and wait for it."""
        self.start()
        for made in list(self._made.values()):
            made.finished.wait()


def _attempt(made: _Made, make: Callable[[], Any], name: str) -> None:
    try:
        made.value = make()
    except Exception as error:
        text = f"{name}: its kernel could not be compiled ({type(error).__name__}: {error})"
        warnings.warn(f"{text}; BlockMasks are exact, and slower to build", RuntimeWarning, stacklevel=2)
    finally:  # a warning may be an error, and who waits must not wait for ever
        made.finished.set()


kernels = Background()
