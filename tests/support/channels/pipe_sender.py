"""A stand-in for the sender of a channel."""

import os


class PipeSender:
    """A sender of nothing, with a descriptor that can be waited for."""

    num_requests = 0

    def __init__(self) -> None:
        self._ends = os.pipe()

    def credit(self, request_id: str) -> int:
        return 1

    def fileno(self) -> int:
        return self._ends[0]

    def close(self) -> None:
        for end in self._ends:
            os.close(end)
