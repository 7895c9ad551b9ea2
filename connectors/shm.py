"""Channels between processes: a ring in a mapped file, woken by two named pipes beside it."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
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

HAS_CHUNK, HAS_ROOM, FRESH, OLD = ".chunk", ".room", ".fresh", ".old"


class PipeEvent(WakeUp):
    """A named pipe that is readable while it holds a byte.

    Both ends open it for reading and writing: no open waits, no end ever sees the other's close.
    The byte is always written: a flag that saved the write could lose a wake-up.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))

    def set(self) -> None:
        """Make it readable; a full pipe is."""
        try:
            os.write(self._file, b"\0")
        except BlockingIOError:
            return

    def clear(self) -> None:
        """Take everything out."""
        try:
            while len(os.read(self._file, 1 << 16)) == 1 << 16:
                continue
        except BlockingIOError:
            return


class ShmOptions(ConnectorOptions):
    """`arena_mb`: what a channel may hold, of which a chunk may take half."""

    arena_mb: int = Field(default=16, ge=1)


class ShmConnector:
    """Channels in `directory`, a folder in memory that belongs to one server run."""

    def __init__(self, directory: Path, options: ShmOptions | None = None) -> None:
        options = options or ShmOptions()
        self._directory = directory
        self._size = RING_START + (options.arena_mb << 20)
        self._window = options.credit

    def create(self, address: str) -> None:
        """Make the file, sparse, and the pipes."""
        path = self._directory / address
        with path.open("xb") as file:
            file.truncate(self._size)
        for ending in (HAS_CHUNK, HAS_ROOM):
            os.mkfifo(f"{path}{ending}")

    def sender(self, address: str) -> RingSender:
        """Open the sending end."""
        return RingSender(address, self._window, self.access(address))

    def receiver(self, address: str, messages: Messages[M]) -> RingReceiver[M]:
        """Open the receiving end."""
        return RingReceiver(self.access(address), messages)

    def access(self, address: str) -> RingAccess:
        """Returns what an end of the channel needs; raises NoChannel."""
        reopen = partial(self._map, address)
        return RingAccess(reopen(), *self._events(address), reopen)

    def renew(self, address: str, generation: int | None = None) -> None:
        """Put a new ring in the old one's place, then mark the old one and wake both ends.

        With a generation, only if the channel has not come to it. Any process may do it: one waits
        for another, and finishes what one left undone that was killed.
        """
        with self._alone(address):
            self._leave_old(address)
            buffer = self._map(address)
            before = Ring(buffer).generation
            wanted = before + 1 if generation is None else generation
            if wanted > before:
                self._replace(address, len(buffer), wanted)
                self._leave_old(address)

    @contextmanager
    def _alone(self, address: str) -> Iterator[None]:
        """Nobody else renews the channel meanwhile; a process that ends lets others do it.

        Whoever destroys it does not wait: raises NoChannel when files of it are gone.
        """
        try:
            file = os.open(f"{self._directory / address}{HAS_ROOM}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
            finally:
                os.close(file)
        except FileNotFoundError:
            raise self._missing(address) from None

    def _replace(self, address: str, size: int, generation: int) -> None:
        path = self._directory / address
        fresh = path.with_name(f"{path.name}{FRESH}")
        with fresh.open("wb") as file:
            file.truncate(size)
        Ring(self._map(fresh.name)).begin(generation)
        os.link(path, f"{path}{OLD}")
        fresh.rename(path)

    def _leave_old(self, address: str) -> None:
        """Send both ends on from the ring that was replaced, if there is one."""
        old = f"{address}{OLD}"
        if not (self._directory / old).exists():
            return
        if not os.path.samefile(self._directory / old, self._directory / address):
            Ring(self._map(old)).mark_renewed()
            for event in self._events(address):
                event.set()
                event.close()
        (self._directory / old).unlink()

    def ring(self, address: str) -> Ring:
        """The ring that is there now, to look at; raises NoChannel."""
        return Ring(self._map(address))

    def usage(self, address: str) -> ChannelUsage:
        """Read from the ring that is there now."""
        ring = self.ring(address)
        try:
            return ring.usage
        finally:
            ring.release()

    def _events(self, address: str) -> tuple[PipeEvent, PipeEvent]:
        path = self._directory / address
        opened: list[PipeEvent] = []
        try:
            for ending in (HAS_CHUNK, HAS_ROOM):
                opened.append(PipeEvent(Path(f"{path}{ending}")))
        except FileNotFoundError:  # it is being destroyed
            for event in opened:
                event.close()
            raise self._missing(address) from None
        return opened[0], opened[1]

    def _map(self, address: str) -> memoryview:
        path = self._directory / address
        try:
            with path.open("r+b") as file:
                return memoryview(mmap.mmap(file.fileno(), 0))
        except (FileNotFoundError, ValueError):  # it is empty while it is being created
            raise self._missing(address) from None

    def _missing(self, address: str) -> NoChannel:
        return NoChannel(f"no channel {address!r} in {self._directory}")

    def destroy(self, address: str) -> None:
        """Remove the file and the pipes; open ends keep their memory until they close."""
        for ending in ("", HAS_CHUNK, HAS_ROOM, FRESH, OLD):
            Path(f"{self._directory / address}{ending}").unlink(missing_ok=True)


CONNECTOR = ConnectorType(ShmOptions, ShmConnector)
