"""The request rows that wait for credit downstream: the exporter writes them, the gate reads.

The two may be in different processes, a rank and the engine core, so it is a file in memory with a
byte a row.
"""

import mmap
from pathlib import Path


class BlockedRows:
    """Rows 0 to `num_rows`, in a file that whoever opens it first makes; one end writes."""

    def __init__(self, path: Path, num_rows: int) -> None:
        with path.open("a+b") as file:
            file.truncate(num_rows + 1)
            self._map = mmap.mmap(file.fileno(), 0)

    @classmethod
    def beside(cls, ledger: Path, num_rows: int) -> "BlockedRows":
        """Returns the file of the engine with this ledger."""
        return cls(ledger.with_name(f"{ledger.name}.blocked"), num_rows)

    def __getitem__(self, row: int) -> bool:
        return bool(self._map[row])

    def any(self) -> bool:
        """Returns whether one of them is."""
        return self._map.find(b"\1", 0) >= 0

    def __setitem__(self, row: int, is_blocked: bool) -> None:
        self._map[row] = is_blocked

    def clear(self) -> None:
        """No row is."""
        self._map[:] = bytes(len(self._map))

    def close(self) -> None:
        """Let the file go."""
        self._map.close()
