"""A server run's folders in memory and on disk, and the removal of what dead servers left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omnistage.connectors.segments import ENDING, remove_segments

PREFIX = "omnistage-"
LOCK, UNLOCKED = "lock", "lock.new"
SCRATCH = "scratch"  # a link to the folder on disk
DEFAULT_ROOT = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Folders that are ours while the lock is held: the kernel frees it when we end.

    `path` is in memory and small; `scratch` is the temporary folder of our stages: sockets and
    files that their engines leave behind when they are killed go with it.
    """

    path: Path
    scratch: Path
    lock: int

    def remove(self) -> None:
        """Remove both folders and let the lock go."""
        remove_run(self.path)
        os.close(self.lock)


def make_run_directory(root: Path = DEFAULT_ROOT, scratch_root: Path | None = None) -> RunDirectory:
    """Make this run's folders, locked for as long as this process lives."""
    prefix = f"{PREFIX}{os.getpid()}-"
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch_root))
    (path / SCRATCH).symlink_to(scratch)
    lock = os.open(path / UNLOCKED, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (path / UNLOCKED).rename(path / LOCK)  # nobody ever sees it free while we live
    return RunDirectory(path, scratch, lock)


def sweep(
    root: Path = DEFAULT_ROOT, before: Callable[[Path], None] = lambda path: None
) -> list[Path]:
    """Remove the folders of servers that are gone; returns those in memory.

    `before` is called with each of them while it is still there.
    """
    removed = []
    for path in root.glob(f"{PREFIX}*"):
        if is_abandoned(path / LOCK):
            before(path)
            remove_run(path)
            removed.append(path)
    return removed


def remove_run(path: Path) -> None:
    """Remove a run's folder in memory, the one on disk that it names, and the segments it notes.

    The lock goes last: if we are killed meanwhile, a sweep finds the rest.
    """
    scratch = (path / SCRATCH).resolve()
    if scratch.name.startswith(PREFIX) and scratch != path:
        shutil.rmtree(scratch, ignore_errors=True)
    for note in path.glob(f"*{ENDING}"):
        remove_segments(note)
    for entry in path.glob("*"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def is_abandoned(lock: Path) -> bool:
    """Returns whether nobody holds the lock; a folder without one is being made."""
    try:
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(file)
