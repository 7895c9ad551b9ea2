"""Stand-ins for CUDA's streams, where no GPU is."""

from typing import Any


class NotedStream:
    """Notes what waits for what."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self._notes = name, notes

    def wait_stream(self, other: "NotedStream") -> None:
        """As torch's."""
        self._notes.append(f"{self.name} waits for {other.name}")
