"""Waits for any of several files, each with what is called when it is ready."""

import select
from collections.abc import Callable
from contextlib import suppress


class Waiting:
    """Holds the files that a loop waits for."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._on_ready: dict[int, Callable[[], None]] = {}

    @property
    def has_files(self) -> bool:
        """Returns whether there is one to wait for."""
        return bool(self._on_ready)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a file is ready, and call what belongs to it."""
        for file, _ in self._poll.poll(timeout_s):
            on_ready = self._on_ready.get(file)
            if on_ready is not None:
                on_ready()

    def add(self, file: int, on_ready: Callable[[], None]) -> None:
        """Wait for what comes to a file."""
        self._on_ready[file] = on_ready
        self._poll.register(file, select.EPOLLIN)

    def want_write(self, file: int, is_wanted: bool) -> None:
        """Wait also for room to write, or no more."""
        self._poll.modify(file, select.EPOLLIN | (select.EPOLLOUT if is_wanted else 0))

    def remove(self, file: int) -> None:
        """Wait for it no longer."""
        del self._on_ready[file]
        with suppress(OSError):  # a file that is closed is waited on no longer
            self._poll.unregister(file)

    def end(self) -> None:
        """Forget all files: whoever waits goes on."""
        self._on_ready.clear()

    def close(self) -> None:
        """Give the kernel's object back."""
        self._poll.close()
