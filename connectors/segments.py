"""Segments of shared memory that a library makes and a killed process leaves behind.

Whoever makes one notes what its name begins with, in a file of the stage's in the run directory, so
that it is removed with the run's folders, and before the stage starts again.
"""

import glob
import os
from pathlib import Path

PLACE = "OMNISTAGE_SEGMENTS"  # in the environment of a stage's processes: the file's path
ENDING = ".segments"
SHARED_MEMORY = Path("/dev/shm")


def note_segments(beginning: str) -> None:
    """Say what names of segments begin with that will be made; without effect in no stage."""
    place = os.environ.get(PLACE)
    if place is not None:
        with Path(place).open("a") as file:
            file.write(f"{beginning}\n")


def remove_segments(note: Path, root: Path = SHARED_MEMORY) -> None:
    """Remove what is noted in a file, and the file; who still uses a segment keeps it."""
    if not note.exists():
        return
    for beginning in _lines(note.read_text()):
        for path in root.glob(f"{glob.escape(beginning)}*"):
            if path.is_file():
                path.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def _lines(text: str) -> list[str]:
    """Returns the lines that are whole: a part of a name could stand for much more."""
    whole = text.rpartition("\n")[0].splitlines()
    return [line for line in whole if line and "/" not in line]
