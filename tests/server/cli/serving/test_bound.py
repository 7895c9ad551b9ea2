"""A command that ends with its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
from support.waiting import wait_until

from omnistage.server.cli.serving import bound

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), "sleep", "3600"])
print(child.pid, flush=True)
time.sleep(3600)
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(bound.__file__))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: psutil.Process(pid).name() == "sleep")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_a_child_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    made = tmp_path / "made"
    done = subprocess.run([sys.executable, str(bound.__file__), "1", "touch", str(made)])
    assert done.returncode == 1
    assert not made.exists()
