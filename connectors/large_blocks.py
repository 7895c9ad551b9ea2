"""Memory that a large chunk or request took goes back to the system; glibc alone would keep most.

Its threshold for blocks of their own grows with each such block that is freed, up to 32 MiB, and
what each thread allocates below it stays with the thread's arena.
"""

import ctypes

LARGE_BYTES = 1 << 20
M_MMAP_THRESHOLD = -3


def set_large_blocks_apart() -> None:
    """Have the C library map each large block by itself, so that it is gone once it is freed.

    For processes that pass large things on; one that computes would pay for fresh pages each time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
