"""Where a CPU computes: in one thread as long as one is enough.

The others give OpenMP's threads back, since idle ones slow it down (`openmp.py`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

from omnistage.stages.diffusion.engine.openmp import release_threads

T = TypeVar("T")


class Run(Protocol):
    """Calls a function, in whatever thread, and waits for it."""

    def __call__(self, function: Callable[[], T]) -> T: ...


class ComputeThreads:
    """Runs functions for two threads: in the first thread, or in a second while that is busy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = ThreadPoolExecutor(1, "omnistage-compute")
        self._second: ThreadPoolExecutor | None = None
        self._is_first_busy = False

    def run(self, function: Callable[[], T]) -> T:
        """Its result or error, without gradients."""
        release_threads()
        with self._lock:
            is_first = not self._is_first_busy
            future = self._in_first(function) if is_first else self._in_second(function)
        try:
            return future.result()
        finally:
            if is_first:
                with self._lock:
                    self._is_first_busy = False

    def _in_first(self, function: Callable[[], T]) -> "Future[T]":
        self._is_first_busy = True
        self._end_second()
        return self._first.submit(_inferred, function)

    def _in_second(self, function: Callable[[], T]) -> "Future[T]":
        if self._second is None:
            self._second = ThreadPoolExecutor(1, "omnistage-compute-too")
        return self._second.submit(_inferred, function)

    def _end_second(self) -> None:
        """With its OpenMP threads, after what it does."""
        if self._second is not None:
            self._second.shutdown(wait=False)
            self._second = None

    def close(self) -> None:
        """End the threads; nobody runs anything any more."""
        self._end_second()
        self._first.shutdown()


@torch.inference_mode()
def _inferred(function: Callable[[], T]) -> T:
    return function()


def run_here(function: Callable[[], T]) -> T:
    """In the calling thread: where threads of the CPU do not matter."""
    return function()
