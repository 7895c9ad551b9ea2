"""Processes that make nothing for a while, whatever comes to them."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.waiting import wait_until

SLICE_S = 0.002
NUM_LOOKS = 5
PAUSE_S = 1.0  # at most, for others that always find something to do


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process do nothing meanwhile; it may be killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _has_stopped(pid))  # the signal comes to each thread in its own time
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def in_slices(pid: int, others: Sequence[int]) -> Iterator[None]:
    """Have a process run for a moment at a time, each once others have done what came of the last.

    So they do at once what they can, however busy the machine is.
    """
    has_ended = threading.Event()

    def go_on() -> None:
        while not has_ended.wait(SLICE_S):
            with stopped(pid):
                latest = time.monotonic() + PAUSE_S
                while not has_ended.is_set() and time.monotonic() < latest:
                    if _have_nothing_to_do(others):
                        break

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _has_stopped(pid: int) -> bool:
    return _states(pid) == {"T"}


def _have_nothing_to_do(pids: Sequence[int]) -> bool:
    """Return whether all sleep for so long that none only waits to look again."""
    for _ in range(NUM_LOOKS):
        time.sleep(SLICE_S)
        if not all(_states(pid) <= set("SDI") for pid in pids):
            return False
    return True


def _states(pid: int) -> set[str]:
    """Return those of a process's threads: R of one that runs, or could."""
    found = set()
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found.add(file.read_text().rpartition(")")[2].split()[0])
    return found
