"""Channels within one process, for tests: the same ring in plain memory, woken by eventfd."""

import os
from functools import partial
from pathlib import Path

from pydantic import Field

from omnistage.connectors.contract import ChannelUsage, NoChannel
from omnistage.connectors.messages import M, Messages
from omnistage.connectors.options import ConnectorOptions, ConnectorType
from omnistage.connectors.receiver import RingReceiver
from omnistage.connectors.ring import RING_START, Ring, WakeUp
from omnistage.connectors.ring_end import RingAccess
from omnistage.connectors.sender import RingSender


class MemoryEvent(WakeUp):
    """An eventfd, by a descriptor of its own."""

    def __init__(self, file: int) -> None:
        super().__init__(os.dup(file))

    def set(self) -> None:
        """Make it readable."""
        os.eventfd_write(self._file, 1)

    def clear(self) -> None:
        """Make it unreadable."""
        try:
            os.eventfd_read(self._file)
        except BlockingIOError:
            return


class _Channel:
    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self.events = os.eventfd(0, flags), os.eventfd(0, flags)


_channels: dict[tuple[Path, str], _Channel] = {}


class InProcessOptions(ConnectorOptions):
    """`arena_mb`: what a channel may hold, of which a chunk may take half."""

    arena_mb: int = Field(default=1, ge=1)


class InProcessConnector:
    """Channels that both ends of one process find by folder and address."""

    def __init__(self, directory: Path, options: InProcessOptions | None = None) -> None:
        options = options or InProcessOptions()
        self._directory = directory
        self._size = RING_START + (options.arena_mb << 20)
        self._window = options.credit

    def create(self, address: str) -> None:
        """Make a channel."""
        key = self._directory, address
        if key in _channels:
            raise FileExistsError(address)
        _channels[key] = _Channel(self._size)

    def _find(self, address: str) -> _Channel:
        try:
            return _channels[self._directory, address]
        except KeyError:
            raise NoChannel(f"no channel {address!r} in {self._directory}") from None

    def sender(self, address: str) -> RingSender:
        """Open the sending end."""
        return RingSender(address, self._window, self._access(address))

    def receiver(self, address: str, messages: Messages[M]) -> RingReceiver[M]:
        """Open the receiving end."""
        return RingReceiver(self._access(address), messages)

    def _access(self, address: str) -> RingAccess:
        chunk, room = (MemoryEvent(file) for file in self._find(address).events)
        reopen = partial(self._buffer, address)
        return RingAccess(reopen(), chunk, room, reopen)

    def _buffer(self, address: str) -> memoryview:
        return memoryview(self._find(address).buffer)

    def renew(self, address: str) -> None:
        """Put a new ring in the old one's place, then mark the old one and wake both ends."""
        channel = self._find(address)
        old = memoryview(channel.buffer)
        channel.buffer = bytearray(self._size)
        Ring(old).mark_renewed()
        for file in channel.events:
            os.eventfd_write(file, 1)

    def usage(self, address: str) -> ChannelUsage:
        """Read from the ring that is there now."""
        ring = Ring(self._buffer(address))
        try:
            return ring.usage
        finally:
            ring.release()

    def destroy(self, address: str) -> None:
        """Remove a channel."""
        channel = _channels.pop((self._directory, address), None)
        if channel is not None:
            for file in channel.events:
                os.close(file)


CONNECTOR = ConnectorType(InProcessOptions, InProcessConnector, between_processes=False)
