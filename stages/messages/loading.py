"""How far a stage is with loading: a note in the run directory.

Whichever process of the stage is at work replaces it, its worker or its engine, also while an event
loop is blocked. The server reads it now and then. It is there only while the stage loads.
"""

import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

PLACE = "OMNISTAGE_LOADING"  # in the environment of a stage's processes: the note's path
INTERVAL_S = 0.1  # a phase that goes on is not told more often

_telling = threading.Lock()  # held by a thread of this process that replaces the note
os.register_at_fork(before=_telling.acquire, after_in_parent=_telling.release)
os.register_at_fork(after_in_child=_telling.release)


class Phase(StrEnum):
    """The phases of loading."""

    PLACING = "waiting for room on a node"
    STARTING = "starting"
    DOWNLOADING = "downloading"
    READING = "reading weights"
    COMPILING = "compiling"
    CAPTURING = "capturing graphs"
    WARMING_UP = "warming up"


class Loading(msgspec.Struct, frozen=True):
    """A phase, and how much of it is done; no total: nobody knows."""

    phase: Phase = Phase.STARTING
    done_bytes: int = 0
    total_bytes: int = 0


def begin_loading(directory: Path, stage: str) -> None:
    """From now on this process and those that it starts tell how far the stage is."""
    path = _file(directory, stage)
    os.environ[PLACE] = str(path)
    _write(path, Loading())


def end_loading() -> None:
    """The stage is ready: nothing more is told."""
    with _telling:
        path = own_note()
        if path is not None:
            path.unlink(missing_ok=True)


def tell_loading(
    phase: Phase,
    done_bytes: int = 0,
    total_bytes: int = 0,
    behind: Collection[Phase] | None = None,
) -> None:
    """Say what the stage does now; with `behind`, only if its phase is one of these.

    Without effect in a process of no stage, or once the stage is ready.
    """
    with _telling:
        path = own_note()
        if path is not None and (behind is None or told_phase() in behind):
            _write(path, Loading(phase, done_bytes, total_bytes))


def read_loading(directory: Path, stage: str) -> Loading | None:
    """Returns what the stage last said; None: it does not load, or has not begun to."""
    return _read(_file(directory, stage))


def write_loading(directory: Path, stage: str, told: Loading | None) -> None:
    """Leave what a stage said elsewhere; None: it loads no longer."""
    if told is None:
        clear_loading(directory, stage)
    else:
        _write(_file(directory, stage), told)


def clear_loading(directory: Path, stage: str) -> None:
    """The stage's processes have ended: their note goes with them."""
    _file(directory, stage).unlink(missing_ok=True)


def told_phase() -> Phase | None:
    """Returns what the processes of our own stage last said; None: it does not load."""
    path = own_note()
    told = None if path is None else _read(path)
    return None if told is None else told.phase


class BytesRead:
    """Counts a stage's weights while they are read, and tells it."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._num_bytes = 0
        self._due_at = 0.0
        self.add(0)

    def add(self, num_bytes: int) -> None:
        """So many more are read."""
        self._num_bytes += num_bytes
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + INTERVAL_S
            self.tell()

    def tell(self) -> None:
        """Say how many have been read."""
        tell_loading(Phase.READING, self._num_bytes, self._total_bytes)


def own_note() -> Path | None:
    """The note of the stage that this process is of, while it loads."""
    place = os.environ.get(PLACE)
    return Path(place) if place is not None and Path(place).exists() else None


def _read(path: Path) -> Loading | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Loading)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, told: Loading) -> None:
    """Replace the note as a whole; a reader finds the one before or this one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    with suppress(OSError):  # the run directory is gone or full: loading goes on
        new.write_bytes(msgspec.json.encode(told))
        new.replace(path)


def _file(directory: Path, stage: str) -> Path:
    return directory / f"{stage}.loading"
