"""Runs the whole suite: tests that start engines of their own, and beside them all others.

Engines leave a core idle for half of their time. Tests that share the servers of a session run
last, beside the part that still runs, so that both cores have work until the end. What does not
come first is printed at the end.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

NICENESS = 3
PYTEST = (sys.executable, "-m", "pytest")
TESTS = Path(__file__).parent.parent / "tests"
MARK = "mark.engine"
# The import of all files takes twice as long, with a core that has nothing else to do.
MARKED = sorted(str(file) for file in TESTS.rglob("test_*.py") if MARK in file.read_text())
ENGINES = (*PYTEST, "-m", "engine and not shared", *MARKED)
SHARING = "tests/e2e"  # where those servers are: no other file is imported
LAST = (*PYTEST, "-m", "engine and shared", SHARING)
SHARED = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
OTHERS = (*PYTEST, "-m", "not engine", *SHARED)

Command = Sequence[str]
Process = subprocess.Popen[bytes]


def run_beside(first: Command, other: Command, last: Command) -> int:
    """Run two commands at once, the second with a lower priority, and one once either has ended.

    Returns 0 if all succeed. The output of all but the first comes at the end.
    """
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        begun = [subprocess.Popen(first)]
        stack.callback(end_all, begun)
        begun.append(
            subprocess.Popen(
                other,
                stdout=outputs[0],
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.nice(NICENESS),
            )
        )
        wait_for_one(begun)
        begun.append(subprocess.Popen(last, stdout=outputs[1], stderr=subprocess.STDOUT))
        codes = [process.wait() for process in begun]
        for output in outputs:
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return int(any(codes))


def wait_for_one(processes: Sequence[Process]) -> None:
    """Wait until one of the processes has ended."""
    files = [os.pidfd_open(process.pid) for process in processes]
    select.select(files, [], [])
    for file in files:
        os.close(file)


def end_all(processes: Sequence[Process]) -> None:
    """End those that still run, as after an interrupt."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(run_beside(ENGINES, OTHERS, LAST))
