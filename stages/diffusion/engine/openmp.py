"""OpenMP's threads, which it keeps for each thread that ever computed on the CPU.

With more of them than cores, GNU's runtime lets all sleep at every barrier, even if only one thread
computes: a forward of many small operations takes a third longer then.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

SOFT_PAUSE = 1  # of omp_pause_resource_t


def release_threads() -> None:
    """End those of the calling thread; its next parallel operation makes new ones."""
    _pause()(SOFT_PAUSE)


@cache
def _pause() -> Callable[[int], int]:
    library = ctypes.CDLL(torch._C.__file__)  # with the symbols of all that torch is linked to
    pause: Callable[[int], int] = getattr(library, "omp_pause_resource_all", lambda kind: -1)
    return pause
