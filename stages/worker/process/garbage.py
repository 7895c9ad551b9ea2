"""Python's garbage collector in the processes of a stage, whose imports make a million objects.

Those live until the process ends. Collections that look at them find nothing: a quarter of what a
process computes until it has imported vLLM, and again seconds when it ends. What few of them are
garbage, 17 MB in a worker of vLLM, is left there.
"""

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

USUAL = gc.get_threshold()
WHILE_IMPORTING = 10_000_000  # new objects from one collection to the next: no import makes so many


def begin_imports() -> None:
    """Before them: collect nothing that they make, and nothing when the process ends."""
    gc.set_threshold(WHILE_IMPORTING)
    atexit.register(_leave)  # registered first, so it runs last


def end_imports() -> None:
    """After them: collect as usual, but never what is there by now.

    Call it before a model is loaded: what refers to one then could never be collected. Without
    `begin_imports` it does nothing: the process is not ours.
    """
    if gc.get_threshold()[0] == WHILE_IMPORTING:
        gc.freeze()
        gc.set_threshold(*USUAL)
        gc.callbacks.append(_leave_uncollected)


def _leave_uncollected(phase: str, info: Mapping[str, int]) -> None:
    """Freeze what a whole collection is about to look at, if the process exits.

    As an engine ends, vLLM unfreezes and collects all of its process twice, for seconds.
    """
    is_whole = phase == "start" and info["generation"] == 2
    if is_whole and isinstance(sys.exc_info()[1], SystemExit):
        gc.freeze()


def _leave() -> None:
    """Leave the memory to the kernel, and what libraries print while Python ends to nobody.

    They count what was not collected as leaks, and their destructors find modules gone.
    """
    gc.freeze()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a library may have closed it
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what native code has printed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
