"""Where a CPU computes: in one thread as long as one is enough.

OpenMP keeps threads for each thread that ever computed on the CPU, so the others give theirs back:
with more of them than cores, GNU's runtime lets all sleep at every barrier, even if only one thread
computes, and a forward of many small operations takes a third longer.
"""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")

SOFT_PAUSE = 1  # of omp_pause_resource_t


class Run(Protocol):
    """Calls a function, in whatever thread, and waits for it."""

    def __call__(self, function: Callable[[], T]) -> T: ...


class ComputeThreads:
    """Runs functions for several threads: in the first thread, or in others while that is busy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = ThreadPoolExecutor(1, "omnistage-compute")
        self._idle: list[ThreadPoolExecutor] = []  # others that do nothing
        self._is_first_busy = False

    def run(self, function: Callable[[], T]) -> T:
        """Returns a result or raises its error, without gradients."""
        release_threads()
        with self._lock:
            chosen, idle = self._chosen(), self._idle
        try:
            return chosen.submit(_inferred, function).result()
        finally:
            with self._lock:
                if chosen is self._first:
                    self._is_first_busy = False
                elif idle is self._idle:
                    idle.append(chosen)
                else:  # the first one began anew meanwhile
                    chosen.shutdown(wait=False)

    def _chosen(self) -> ThreadPoolExecutor:
        if not self._is_first_busy:
            self._is_first_busy = True
            self._end_idle()
            return self._first
        return self._idle.pop() if self._idle else ThreadPoolExecutor(1, "omnistage-compute-too")

    def _end_idle(self) -> None:
        """With their OpenMP threads."""
        for thread in self._idle:
            thread.shutdown(wait=False)
        self._idle = []

    def close(self) -> None:
        """End the threads; nobody runs anything any more."""
        self._end_idle()
        self._first.shutdown()


@torch.inference_mode()
def _inferred(function: Callable[[], T]) -> T:
    return function()


def run_here(function: Callable[[], T]) -> T:
    """In the calling thread: where threads of the CPU do not matter."""
    return function()


def release_threads() -> None:
    """End OpenMP's threads of the calling thread; its next parallel operation makes new ones."""
    _pause()(SOFT_PAUSE)


@cache
def _pause() -> Callable[[int], int]:
    library = ctypes.CDLL(torch._C.__file__)  # with the symbols of all that torch is linked to
    pause: Callable[[int], int] = getattr(library, "omp_pause_resource_all", lambda kind: -1)
    return pause
