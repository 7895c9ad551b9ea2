"""Runs the whole suite: the tests that start engines, and beside them all others, which give way.

Engines leave a core idle for half of their time. The others' output is printed at the end.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

NICENESS = 5
PYTEST = (sys.executable, "-m", "pytest")
ENGINES = (*PYTEST, "-m", "engine")
SHARED = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
OTHERS = (*PYTEST, "-m", "not engine", *SHARED)


def run_beside(first: Sequence[str], other: Sequence[str]) -> int:
    """Runs two commands at once, the second with a lower priority; returns 0 if both succeed."""
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(
            other,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(NICENESS),
        )
        try:
            failed = subprocess.run(first).returncode
            failed = beside.wait() or failed
        finally:
            beside.terminate()
            beside.wait()
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(run_beside(ENGINES, OTHERS))
