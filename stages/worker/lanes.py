"""The lanes of a stage: engines that share its work, each with channels of its own.

Which of them a request is for, every stage knows by the request's id.
"""

import select
import zlib
from collections.abc import Sequence

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Sender


def lane_of(request_id: str, num_lanes: int) -> int:
    """The lane of a request, 0 to `num_lanes` - 1."""
    return zlib.crc32(request_id.encode()) % num_lanes


class LaneSender:
    """A sender to all lanes of a stage, of which each request's chunks go to one."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._senders = senders
        self._moved = select.epoll()  # readable when one of them is
        for sender in senders:
            self._moved.register(sender.fileno(), select.EPOLLIN)

    def _of(self, request_id: str) -> Sender:
        return self._senders[lane_of(request_id, len(self._senders))]

    def send(self, chunk: Chunk) -> None:
        self._of(chunk.request_id).send(chunk)

    def offer(self, chunk: Chunk) -> bool:
        return self._of(chunk.request_id).offer(chunk)

    def flush(self) -> int:
        return sum(sender.flush() for sender in self._senders)

    def credit(self, request_id: str) -> int:
        return self._of(request_id).credit(request_id)

    def forget(self, request_id: str) -> None:
        self._of(request_id).forget(request_id)

    @property
    def num_requests(self) -> int:
        return sum(sender.num_requests for sender in self._senders)

    def fileno(self) -> int:
        return self._moved.fileno()

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self._moved.close()


def to_lanes(senders: Sequence[Sender]) -> Sender:
    """They as one sender."""
    return senders[0] if len(senders) == 1 else LaneSender(senders)
