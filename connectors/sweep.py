"""A server run's folder in shared memory, and the removal of folders whose server is gone."""

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

PREFIX = "omnistage-"
LOCK = "lock"
DEFAULT_ROOT = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A folder that is ours while the lock in it is held: the kernel frees it when we end."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove the folder and let the lock go."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_run_directory(root: Path = DEFAULT_ROOT) -> RunDirectory:
    """Make this run's folder, locked for as long as this process lives."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
    lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return RunDirectory(path, lock)


def sweep(root: Path = DEFAULT_ROOT) -> list[Path]:
    """Remove the folders of servers that are gone; returns them."""
    removed = []
    for path in root.glob(f"{PREFIX}*"):
        if is_abandoned(path / LOCK):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def is_abandoned(lock: Path) -> bool:
    """Whether nobody holds the lock; a folder without one is being made."""
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
