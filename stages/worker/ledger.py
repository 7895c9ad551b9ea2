"""Counts of engines that their stage's process can read: what they hold, and what they saw."""

import mmap
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path

WORD = struct.Struct("<q")


class Held(IntEnum):
    """The counts of the ledger; each word of the file has one writer."""

    ROWS = 0  # request rows of the step table
    LATE_INPUTS = 1  # requests that wait for inputs or have them
    BLOCKS = 2  # KV cache blocks of an engine behind the gate
    STREAMS = 3  # requests whose results are being exported
    CREDITS = 4  # requests that hold credit or a backlog of the edge downstream
    LATE_ROWS = 5  # rows of upstream that wait to be computed
    KV_BYTES = 6  # bytes of keys and values that wait to be sent, or that have come for requests


class Seen(IntEnum):
    """Further counts, after those of Held; no leak if they are not zero."""

    WAITING = len(Held)  # requests that wait for a seat: all of the engine's are taken
    NAN_STEPS = WAITING + 1  # steps with a NaN among the logits


NUM_WORDS = len(Held) + len(Seen)


class Ledger:
    """Counts in a file in memory, made by whoever opens it first."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(WORD.size * NUM_WORDS)
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, what: Held | Seen, count: int) -> None:
        """Set one count."""
        WORD.pack_into(self._map, WORD.size * what, count)

    def read(self) -> dict[str, int]:
        """Returns what is held, by name in lower case."""
        return {what.name.lower(): self._count(what) for what in Held}

    def read_seen(self) -> dict[str, int]:
        """Returns what was seen, by name in lower case."""
        return {what.name.lower(): self._count(what) for what in Seen}

    def _count(self, what: Held | Seen) -> int:
        count: int = WORD.unpack_from(self._map, WORD.size * what)[0]
        return count

    def clear(self) -> None:
        """Set all counts to zero."""
        for what in (*Held, *Seen):
            self.write(what, 0)

    def close(self) -> None:
        """Let the file go."""
        self._map.close()


def lane_ledger(path: Path, lane: int) -> Path:
    """The file of one lane of a stage, whose first lane has the stage's."""
    return path.with_name(f"{path.name}.{lane}") if lane else path


class Ledgers:
    """The ledgers of all lanes of a stage, added up."""

    def __init__(self, path: Path, num_lanes: int = 1) -> None:
        self._ledgers = [Ledger(lane_ledger(path, lane)) for lane in range(num_lanes)]

    def read(self) -> dict[str, int]:
        """Returns what they hold."""
        return added(ledger.read() for ledger in self._ledgers)

    def read_seen(self) -> dict[str, int]:
        """Returns what they saw."""
        return added(ledger.read_seen() for ledger in self._ledgers)

    def clear(self) -> None:
        """Set all counts to zero."""
        for ledger in self._ledgers:
            ledger.clear()

    def close(self) -> None:
        """Let the files go."""
        for ledger in self._ledgers:
            ledger.close()


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums by name."""
    total: Counter[str] = Counter()
    for one in counts:
        for name, count in one.items():
            total[name] += count
    return dict(total)
