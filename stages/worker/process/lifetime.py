"""Ending a process when its parent is gone."""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
STAGE_MARK = "OMNISTAGE_PROCESS_OF_STAGE"
PARENT = "OMNISTAGE_PARENT"  # in the environment: the process that started this one


def end_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies; only below a stage, only on Linux.

    A parent that has died before is known by its id: a process names itself in the environment of
    those that it starts. The mark in the environment keeps the plugin from touching processes of
    users who run vLLM by itself in the same environment.
    """
    if sys.platform != "linux" or STAGE_MARK not in os.environ:
        return
    parent = int(os.environ.get(PARENT) or os.getppid())
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and not _runs(parent):
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())


def begin_fork() -> None:
    """In a forked child: its signals are its own, and it ends with its parent."""
    signal.set_wakeup_fd(-1)  # or they would wake the event loop of its parent
    end_with_parent()


def _runs(process: int) -> bool:
    """Returns whether it is there and has not ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
