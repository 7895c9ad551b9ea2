"""Ending a process when its parent is gone."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
STAGE_MARK = "OMNISTAGE_PROCESS_OF_STAGE"


def end_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies; only below a stage, only on Linux.

    The mark in the environment keeps the plugin from touching processes of users who run vLLM by
    itself in the same environment.
    """
    if sys.platform != "linux" or STAGE_MARK not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
