"""Waiting until the gateway takes what a request has sent, so that what waits stays bounded."""

import asyncio
from collections import defaultdict

from omnistage.connectors.contract import Sender


class Room:
    """The room of one sender, whose descriptor calls `flush`; all from the event loop's thread."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: dict[str, list[asyncio.Future[None]]] = defaultdict(list)

    def is_free(self, request_id: str) -> bool:
        """Returns whether the request's next chunk would go at once."""
        return self._sender.credit(request_id) > 0

    async def wait(self, request_id: str) -> None:
        """Return once the request's next chunk would go at once."""
        while not self.is_free(request_id):
            freed = asyncio.get_running_loop().create_future()
            self._waiting[request_id].append(freed)
            try:
                await freed
            finally:
                self._waiting[request_id].remove(freed)
                if not self._waiting[request_id]:
                    del self._waiting[request_id]

    def flush(self) -> None:
        """Send what can go, and wake who waited for that."""
        self._sender.flush()
        for request_id, waiting in self._waiting.items():
            if self.is_free(request_id):
                for freed in waiting:
                    if not freed.done():
                        freed.set_result(None)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)
