"""Run a command that ends when its parent does: `python bound.py PARENT COMMAND...`.

It is run as a file and imports nothing of ours, so that it takes no time. The kernel keeps what
is asked of it here when the command takes this process's place.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Take the command's place; without a parent, end."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
