"""A connector that is `shm`, and writes a line into a file for each chunk that is sent."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import ChannelUsage, Receiver, Sender
from omnistage.connectors.messages import M, Messages
from omnistage.connectors.options import ConnectorType
from omnistage.connectors.shm import ShmConnector, ShmOptions


class JournalOptions(ShmOptions):
    """Those of `shm` and two more; a graph file with others is refused by `omnistage check`."""

    file: str = Field(min_length=1)
    tells: Literal["channel", "request"] = "channel"


class Journal:
    """Makes the channels of one edge; the folder is that of the server's run."""

    def __init__(self, directory: Path, options: JournalOptions) -> None:
        self._shm = ShmConnector(directory, options)
        self._options = options

    def create(self, address: str) -> None:
        """Make a channel."""
        self._shm.create(address)

    def sender(self, address: str) -> Sender:
        """Open the sending end, which writes the journal."""
        return JournalSender(self._shm.sender(address), address, self._options)

    def receiver(self, address: str, messages: Messages[M]) -> Receiver[M]:
        """Open the receiving end."""
        return self._shm.receiver(address, messages)

    def renew(self, address: str) -> None:
        """Empty a channel one end of which has died."""
        self._shm.renew(address)

    def usage(self, address: str) -> ChannelUsage:
        """What went through a channel."""
        return self._shm.usage(address)

    def destroy(self, address: str) -> None:
        """Remove a channel."""
        self._shm.destroy(address)


class JournalSender:
    """A sender of `shm` that writes before it sends."""

    def __init__(self, sender: Sender, address: str, options: JournalOptions) -> None:
        self._sender = sender
        self._address = address
        self._options = options

    def send(self, chunk: Chunk) -> None:
        """Write the line, then send."""
        told = chunk.request_id if self._options.tells == "request" else self._address
        with Path(self._options.file).open("a", encoding="utf-8") as journal:
            journal.write(f"{told}: {type(chunk.message).__name__}\n")
        self._sender.send(chunk)

    def offer(self, chunk: Chunk) -> bool:
        """Send what can go at once; the journal has `send` alone."""
        return self._sender.offer(chunk)

    def flush(self) -> int:
        """Send what waits."""
        return self._sender.flush()

    def credit(self, request_id: str) -> int:
        """How many chunks a request may send."""
        return self._sender.credit(request_id)

    def forget(self, request_id: str) -> None:
        """Drop what a request has queued."""
        self._sender.forget(request_id)

    @property
    def num_requests(self) -> int:
        """Requests that still have something here."""
        return self._sender.num_requests

    def fileno(self) -> int:
        """Readable when there is something to flush."""
        return self._sender.fileno()

    def close(self) -> None:
        """Close this end."""
        self._sender.close()


CONNECTOR = ConnectorType(JournalOptions, Journal)
