"""What is left of an agent that was killed is removed, and nothing of one that lives."""

import os
import time
from pathlib import Path

from support.faults.chaos import is_there
from support.waiting import wait_until

from omnistage.connectors.sweep import make_run_directory
from omnistage.server.placement.janitor import start_janitor


def janitors_of(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(int(path.parent.name))
    return found


def test_the_folders_of_an_agent_that_is_gone_are_removed(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path, tmp_path)
    writing = start_janitor(run.path)
    (pid,) = janitors_of(run.path)
    os.close(run.lock)
    time.sleep(0.2)
    assert run.path.exists()  # its agent is there still
    os.close(writing)
    wait_until(lambda: not run.path.exists() and not run.scratch.exists())
    wait_until(lambda: not is_there(pid))


def test_folders_whose_lock_is_held_stay(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path, tmp_path)
    os.close(start_janitor(run.path))
    time.sleep(0.5)
    assert run.path.exists()
    run.remove()
    wait_until(lambda: not janitors_of(run.path))


def test_it_ends_with_an_agent_that_has_cleaned_up(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path, tmp_path)
    writing = start_janitor(run.path)
    run.remove()
    os.close(writing)
    wait_until(lambda: not janitors_of(run.path))
