"""Memory that a large request took goes back to the system: what its small blocks left as well."""

import asyncio
import ctypes

from omnistage.connectors.large_blocks import LARGE_BYTES

WAIT_S = 1.0  # between the end of a large request and giving back: several end together


class GivingBack:
    """Gives free memory back a little after something large has ended."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._is_due = False

    def freed(self, num_bytes: int) -> None:
        """Something of this size has ended."""
        if num_bytes >= LARGE_BYTES and not self._is_due and hasattr(self._libc, "malloc_trim"):
            self._is_due = True
            asyncio.get_running_loop().call_later(WAIT_S, self._begin)

    def _begin(self) -> None:
        self._is_due = False
        asyncio.get_running_loop().run_in_executor(None, self._libc.malloc_trim, 0)
