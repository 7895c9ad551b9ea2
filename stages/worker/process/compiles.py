"""How much code the processes of a stage have compiled, as the stage's own process reads it.

An engine that compiles answers nothing meanwhile. So each process that compiles, the stage's own,
its engine's or one of the engine's ranks, counts in a file of its own.
"""

import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PLACE = "OMNISTAGE_COMPILES"  # in the environment of a stage's processes: the files, but for a pid
COUNTS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Compiles:
    """Compilations that have begun, and those of them that have ended."""

    begun: int = 0
    ended: int = 0

    @property
    def is_running(self) -> bool:
        """Returns whether one has begun and has not ended."""
        return self.begun > self.ended


class CompileCounter:
    """Counts the compilations of this process; threads and forked children may use it too."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._begun = self._ended = 0

    def begin(self) -> None:
        """Count one that begins."""
        self._add(1, 0)

    def end(self) -> None:
        """Count one that ends."""
        self._add(0, 1)

    def _add(self, begun: int, ended: int) -> None:
        with self._lock:
            if os.getpid() != self._process:  # forked: what began before is the parent's
                self._process, self._begun, self._ended = os.getpid(), 0, 0
            self._begun += begun
            self._ended += ended
            with suppress(OSError):  # the run directory is gone or full: it compiles all the same
                self._write(COUNTS.pack(self._begun, self._ended))

    def _write(self, counts: bytes) -> None:
        file = os.open(f"{self._place}.{self._process}", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, counts, 0)
        finally:
            os.close(file)


def begin_counting(directory: Path, stage: str) -> None:
    """Let this process and those that it starts count from now on, beginning with zero."""
    os.environ[PLACE] = str(directory / f"{stage}.compiles")
    for file in _files():  # of the generation before
        file.unlink(missing_ok=True)


def own_counter() -> CompileCounter | None:
    """Return a counter for this process; None if it belongs to no stage."""
    place = os.environ.get(PLACE)
    return None if place is None else CompileCounter(Path(place))


def read_compiles() -> Compiles:
    """Add up the counts of all processes of this process's stage."""
    begun = ended = 0
    for file in _files():
        with suppress(OSError, struct.error):  # it was made just now and is empty
            counts = COUNTS.unpack(file.read_bytes())
            begun += counts[0]
            ended += counts[1]
    return Compiles(begun, ended)


def _files() -> list[Path]:
    if PLACE not in os.environ:
        return []
    place = Path(os.environ[PLACE])
    try:
        return [file for file in place.parent.iterdir() if file.stem == place.name]
    except OSError:  # the run directory is gone
        return []
