"""What a server run leaves, and who removes it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnistage.connectors.sweep import LOCK, is_abandoned, make_run_directory, sweep

DIE_AFTER_MAKING = (
    "import os, sys; from pathlib import Path\n"
    "from omnistage.connectors.sweep import make_run_directory\n"
    "run = make_run_directory(*map(Path, sys.argv[1:]))\n"
    "(run.scratch / 'socket').touch()\n"
    "print(run.path, flush=True); os._exit(0)"
)

DIE_WHILE_REMOVING = """
import os, sys
from pathlib import Path
from support.channels.victim import die_after
from omnistage.connectors.sweep import make_run_directory, sweep

memory, disk = map(Path, sys.argv[1:])
code, num_instructions = -9, 1
while code == -9:
    if os.fork() == 0:
        run = make_run_directory(memory, disk)
        (run.scratch / "socket").touch()
        for name in ("a", "b", "c"):
            (run.path / name).write_bytes(b"channel")
        die_after(num_instructions, "connectors", "shutil", "pathlib")
        run.remove()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    sweep(memory)
    assert not [list(path.iterdir()) for path in memory.iterdir() if list(path.iterdir())]
    assert not list(disk.iterdir())
    num_instructions += 23
sys.exit(code or num_instructions < 500)
"""


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    return memory, disk


def test_a_sweep_takes_only_what_dead_servers_left(roots: tuple[Path, Path]) -> None:
    ours = make_run_directory(*roots)
    command = [sys.executable, "-c", DIE_AFTER_MAKING, *map(str, roots)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sweep(roots[0]) == [Path(done.stdout.strip())]
    assert [ours.path] == list(roots[0].iterdir())
    assert [ours.scratch] == list(roots[1].iterdir())
    ours.remove()
    assert not list(roots[0].iterdir())
    assert not list(roots[1].iterdir())


def test_a_sweep_finishes_what_a_server_killed_while_it_cleaned_up_began(
    roots: tuple[Path, Path],
) -> None:
    command = [sys.executable, "-c", DIE_WHILE_REMOVING, *map(str, roots)]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)


def test_a_sweep_removes_nothing_that_a_link_of_another_name_points_to(
    roots: tuple[Path, Path], tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    run = make_run_directory(*roots)
    (run.path / "scratch").unlink()
    (run.path / "scratch").symlink_to(precious)
    run.remove()
    assert precious.is_dir()


def test_the_lock_of_a_living_server_is_never_free(roots: tuple[Path, Path]) -> None:
    """Another server sweeps all the while that runs are made."""
    is_done = threading.Event()
    found: list[Path] = []

    def look() -> None:
        while not is_done.is_set():
            found.extend(path for path in roots[0].iterdir() if is_abandoned(path / LOCK))

    looking = threading.Thread(target=look)
    looking.start()
    runs = [make_run_directory(*roots) for _ in range(200)]
    is_done.set()
    looking.join()
    assert found == []
    for run in runs:
        run.remove()
