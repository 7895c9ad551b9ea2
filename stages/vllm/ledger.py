"""What an engine holds for requests, as counts that its stage's process can read: to find leaks."""

import mmap
import struct
from enum import IntEnum
from pathlib import Path

WORD = struct.Struct("<q")


class Held(IntEnum):
    """What is counted; each word of the file has one writer."""

    ROWS = 0  # request rows of the step table
    LATE_INPUTS = 1  # requests that wait for inputs or have them
    BLOCKS = 2  # KV cache blocks of an engine behind the gate
    STREAMS = 3  # requests whose results are being exported
    CREDITS = 4  # requests that hold credit or a backlog of the edge downstream


class Ledger:
    """Counts in a file in memory, made by whoever opens it first."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(WORD.size * len(Held))
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, what: Held, count: int) -> None:
        """Set one count."""
        WORD.pack_into(self._map, WORD.size * what, count)

    def read(self) -> dict[str, int]:
        """All counts by name, in lower case."""
        return {
            what.name.lower(): WORD.unpack_from(self._map, WORD.size * what)[0] for what in Held
        }

    def clear(self) -> None:
        """Set all counts to zero."""
        for what in Held:
            self.write(what, 0)

    def close(self) -> None:
        """Let the file go."""
        self._map.close()
