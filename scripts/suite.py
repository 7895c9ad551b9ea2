"""Runs the whole suite: tests that start engines of their own, and beside them all others.

Engines leave a core idle for half of their time. Tests that share the servers of a session run
beside them first: then the part that ends last is that of two processes, which need both cores.
What does not come first is printed at the end.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest")
TESTS = Path(__file__).parent.parent / "tests"
MARK = "mark.engine"
# The import of all files takes twice as long, with a core that has nothing else to do.
MARKED = sorted(str(file) for file in TESTS.rglob("test_*.py") if MARK in file.read_text())
ENGINES = (*PYTEST, "-m", "engine and not shared", *MARKED)
SHARING = "tests/e2e"  # where those servers are: no other file is imported
SHARED = (*PYTEST, "-m", "engine and shared", SHARING)
SPREAD = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
OTHERS = (*PYTEST, "-m", "not engine", *SPREAD)

Command = Sequence[str]
Process = subprocess.Popen[bytes]


def run_beside(first: Command, others: Sequence[Command]) -> int:
    """Run a command and, at the same time, others one after another.

    Returns 0 if all succeed. The output of all but the first comes at the end.
    """
    with ExitStack() as stack:
        begun = [subprocess.Popen(first)]
        stack.callback(end_all, begun)
        outputs = []
        for command in others:
            outputs.append(stack.enter_context(tempfile.TemporaryFile()))
            begun.append(subprocess.Popen(command, stdout=outputs[-1], stderr=subprocess.STDOUT))
            begun[-1].wait()
        codes = [process.wait() for process in begun]
        for output in outputs:
            output.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return int(any(codes))


def end_all(processes: Sequence[Process]) -> None:
    """End those that still run, as after an interrupt."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(run_beside(ENGINES, [SHARED, OTHERS]))
