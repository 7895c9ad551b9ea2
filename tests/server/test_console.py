"""Ctrl-C at the console script before its command runs."""

import signal
import subprocess
import sys

import pytest

# Ctrl-C comes while the command line is imported; `before` is what Python has set up for it.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{before})
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "omnistage.server.cli.plan":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from omnistage.server.console import main
sys.argv = ["omnistage", "--version"]
main()
"""
AFTERWARDS = """
import signal
from omnistage.server import cli, console
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
console.main()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("before", "code"),
    [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)],
    ids=["heeded", "ignored, as in the background of a shell"],
)
def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(before: str, code: int) -> None:
    done = run(INTERRUPTED.format(before=before))
    assert (done.returncode, done.stderr) == (code, "")


def test_a_command_hears_ctrl_c_as_every_python_program() -> None:
    assert run(AFTERWARDS).stdout == "True\n"
