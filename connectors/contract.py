"""The contract of connectors: one way, bounded, never blocking, with credit per request.

A request's sender starts with a window of chunks; each chunk takes one, the receiver gives them
back. Without credit, or without room, a chunk waits in its request's own backlog: one slow request
never stalls another. A backlog is bounded by the credit, and by chunks and bytes beyond it: while
`credit` says n, so many sends do not raise Full, whatever their sizes.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.messages import M, M_co, Messages


class ConnectorError(Exception):
    """A channel could not do what it was asked."""


class Full(ConnectorError):
    """A request without credit has a backlog that is at its bound."""


class ChannelClosed(ConnectorError):
    """This end was closed."""


class ChunkTooLarge(ConnectorError):
    """A chunk, with all that describes it, takes more than half of the channel's arena."""


class NoChannel(ConnectorError):
    """No channel was created at this address."""


class ChannelUsage(NamedTuple):
    """The traffic of a channel since it was made or renewed, and its contents now.

    `wait_ns`: from `send` to `receive`, of all received chunks together; `backlog_ns`: what of
    that its chunks spent in the sender's backlogs, for want of credit or of room. `num_backlog`
    chunks are there now; `used_bytes` are written and not yet received, of `size_bytes`.
    """

    num_sent: int
    sent_bytes: int
    num_received: int
    wait_ns: int
    backlog_ns: int
    num_backlog: int
    used_bytes: int
    size_bytes: int


class Sender(Protocol):
    """The end that sends; safe to call from several threads of one process.

    Once closed, it has nothing to flush, no credit and no requests.
    """

    def send(self, chunk: Chunk) -> None:
        """Send now or put into the request's backlog; raises Full, Closed or ChunkTooLarge.

        The tensors' memory is shared until the chunk has gone: do not write to it.
        """

    def offer(self, chunk: Chunk) -> bool:
        """Send now, or return False where credit or room is missing: the chunk is not kept.

        Its tensors may be `Filling`s. Raises Closed or ChunkTooLarge.
        """

    def flush(self) -> int:
        """Send what can go from the backlogs, one chunk a request in turn; returns what is left."""

    def credit(self, request_id: str) -> int:
        """Chunks that the request may still send, none of which is refused; 0 while one waits.

        A change from 0 makes `fileno` readable, and is seen after `flush`.
        """

    def forget(self, request_id: str) -> None:
        """Drop the request's backlog; it sends nothing more."""

    @property
    def num_requests(self) -> int:
        """Requests that have a backlog or wait for credit to come back."""

    def fileno(self) -> int:
        """Readable when credit or room came back: then call `flush`."""

    def close(self) -> None:
        """Close this end."""


class Receiver(Protocol[M_co]):
    """The end that receives, from one thread; `grant` and `forget` from any.

    Once closed, it holds no credit.
    """

    def receive(self) -> Chunk[M_co] | None:
        """The next chunk, in memory of its own, or None; raises Closed.

        One whose message is `in_place` may be in the channel's memory until the next call.

        One that the channel does not carry is dropped and raises UnknownMessage.
        """

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a chunk may be there; False after the timeout; raises Closed."""

    def fileno(self) -> int:
        """Readable when a chunk may be there: then call `receive` until None."""

    def grant(self, request_id: str, num_chunks: int = 1) -> None:
        """Give credit back, for chunks that were received and are dealt with."""

    def grant_each(self, request_ids: Sequence[str]) -> None:
        """Give credit back for one chunk of each, and wake the sender once."""

    def forget(self, request_id: str) -> None:
        """Give back everything that the request's received chunks hold."""

    @property
    def num_requests(self) -> int:
        """Requests whose chunks hold credit."""

    def close(self) -> None:
        """Close this end."""


class Connector(Protocol):
    """A way to make channels."""

    def create(self, address: str) -> None:
        """Make a channel, before either end opens it; a chunk may take half of its arena."""

    def sender(self, address: str) -> Sender:
        """Open the sending end; raises NoChannel."""

    def receiver(self, address: str, messages: Messages[M]) -> Receiver[M]:
        """Open the receiving end of a channel for these messages; raises NoChannel."""

    def renew(self, address: str) -> None:
        """Empty a channel one end of which has died.

        An end that is open goes over at its next use: it loses what it had queued, held or owed,
        and what is still sent for a request that it knew is dropped. The dead end is opened again.
        Raises NoChannel.
        """

    def usage(self, address: str) -> ChannelUsage:
        """Returns what went through a channel and what is in it, whatever its ends do; raises
        NoChannel.
        """

    def destroy(self, address: str) -> None:
        """Remove a channel; a missing one is fine."""


class Losses(Protocol):
    """Tells of channels that were lost while both of their ends lived, as a network loses them.

    What was sent and not received is gone, and the channels are renewed: their ends go over.
    """

    def fileno(self) -> int:
        """Readable when channels may have been lost: then call `losses`."""

    def losses(self) -> Sequence[str]:
        """The addresses of those that were lost since the last call."""
