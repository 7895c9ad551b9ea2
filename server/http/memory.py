"""Memory that a large request took goes back to the system; glibc alone would keep most of it.

Its threshold for blocks of their own grows with each such block that is freed, up to 32 MiB, and
what each thread allocates below it stays with the thread's arena.
"""

import asyncio
import ctypes

LARGE_BYTES = 1 << 20
WAIT_S = 1.0  # between the end of a large request and giving back: several end together
M_MMAP_THRESHOLD = -3


def set_large_blocks_apart() -> None:
    """Have the C library map each large block by itself, so that it is gone once it is freed."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


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
