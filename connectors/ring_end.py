"""The common part of a channel's ends: its ring, its events, a lock, and an end."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from omnistage.connectors.ring import Ring, WakeUp


class RingAccess(NamedTuple):
    """A channel's memory, its events, and how to get at its memory when it was renewed."""

    buffer: memoryview
    has_chunk: WakeUp
    has_room: WakeUp
    reopen: Callable[[], memoryview]


class RingEnd:
    """One end, whose events are its own."""

    def __init__(self, access: RingAccess) -> None:
        buffer, self._has_chunk, self._has_room, self._reopen = access
        self._lock = threading.Lock()
        self._ring = Ring(buffer)
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._ring.release()
        self._has_chunk.close()
        self._has_room.close()
