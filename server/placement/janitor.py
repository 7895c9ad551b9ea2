"""`python -m omnistage.server.placement.janitor FOLDER`: what is left of an agent that was killed.

It waits until its standard input ends, which is when the agent does, and removes the run's folders
if the agent has not. It is nobody's child: whoever ends the agent's children spares it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from omnistage.connectors.sweep import LOCK, is_abandoned, remove_run

PATIENCE_S = 10.0  # for stages that are just ending and still write
POLL_S = 0.1


def start_janitor(folder: Path) -> int:
    """Start one for a run's folder; the descriptor returned keeps it waiting."""
    reading, writing = os.pipe()
    try:
        command = [sys.executable, "-m", "omnistage.server.placement.janitor", str(folder)]
        subprocess.run(command, stdin=reading, stdout=subprocess.DEVNULL, check=True)
    finally:
        os.close(reading)
    return writing


def clean_up(folder: Path) -> None:
    """Remove a run's folders, unless somebody holds their lock."""
    deadline = time.monotonic() + PATIENCE_S
    while folder.exists() and time.monotonic() < deadline:
        if is_abandoned(folder / LOCK):
            remove_run(folder)
        time.sleep(POLL_S)


def main() -> None:
    """Go to the background, wait, clean up."""
    if os.fork():
        return
    os.setsid()
    sys.stdin.buffer.read()
    clean_up(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
