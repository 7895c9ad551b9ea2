"""A node's link as its owner has it: started, told, heard, started again."""

import logging
import os
import select
import socket
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from omnistage.connectors.contract import ChannelUsage, NoChannel
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.connectors.tcp.handshake import MIN_SECRET_BYTES, own_identity
from omnistage.connectors.tcp.orders import (
    EVENTS,
    MAX_BYTES,
    Begin,
    CloseHalf,
    Event,
    Leave,
    LinkEnded,
    LinkSettings,
    LinkStarted,
    Meet,
    OpenHalf,
    Order,
    PeerLost,
    PeerUp,
    Trouble,
    encoded,
    new_channel,
)
from omnistage.connectors.tcp.rings import renew_joined, ring_name

logger = logging.getLogger(__name__)

START_S = 30.0  # until a link says that it runs, on a machine that is busy
TELL_S = 2.0  # a link that runs and does not take an order for so long is started again
END_S = 2.0
CLOSE_S = 5.0  # a link that does not let go of a ring within it is started again
MAX_FAILED_STARTS = 5


class End(Enum):
    """The end of a channel that is on a node."""

    SENDER = "sender"
    RECEIVER = "receiver"


class NodeLink:
    """The link of one node of a run, for the process that owns the node's run directory.

    Its methods do not wait for other nodes. A link that ends is started again by `events`, with
    all that it was told, and listens on the same port.
    """

    def __init__(self, name: str, directory: Path, settings: LinkSettings) -> None:
        if len(settings.secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a secret has at least {MIN_SECRET_BYTES} bytes: use new_secret()")
        if bool(settings.certificate) != bool(settings.key):
            raise ValueError("TLS needs both a certificate and its key")
        own_identity(name)
        self.name = name
        self._directory = directory
        self._settings = settings
        self._peers: dict[str, Meet] = {}
        self._halves: dict[str, OpenHalf] = {}
        self._listener = _listen(settings.host, settings.port)
        self._poll = select.epoll()
        self._num_failed_starts = 0
        self._start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def pid(self) -> int:
        """Returns the id of its process."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when something has happened: then call `events`."""
        return self._poll.fileno()

    # Peers

    def meet(self, peer: str, host: str, port: int) -> None:
        """Connect to a peer for as long as both live; `host` is a numeric address.

        Call it on both nodes: of the two names the one that comes first in order connects.
        """
        socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
        if peer == self.name:
            raise ValueError(f"{peer!r} is this node itself")
        self._peers[peer] = Meet(peer, host, port, connects=self.name < peer)
        self._tell(self._peers[peer])

    def leave(self, peer: str) -> None:
        """Have nothing more to do with a peer; its channels are to be destroyed too."""
        if self._peers.pop(peer, None) is not None:
            self._halves = {key: one for key, one in self._halves.items() if one.peer != peer}
            self._tell(Leave(peer))

    # Channels

    def create(
        self, address: str, peer: str, end: End, options: ShmOptions, name: str = ""
    ) -> None:
        """Make this node's ring of a channel whose other end is on that peer.

        Both nodes do so, in any order, with the same options. An address that was destroyed and is
        created again needs a `name` that no channel had before, the same on both nodes.
        """
        if peer not in self._peers:
            raise ValueError(f"no peer {peer!r}: `meet` it first")
        ring = ring_name(address, end is End.SENDER)
        self._rings(options).create(ring)
        sends = end is End.SENDER
        half = OpenHalf(address, name or address, peer, sends, str(self._directory), ring)
        self._halves[address] = half
        self._tell(half)

    def join(self, address: str, peer: str, end: End, name: str) -> None:
        """Join a ring that this node has already, which has the channel's address for a name.

        For a channel whose ends may come to be on one node, or on other nodes than before. `name`
        is the same on both nodes, and new each time.
        """
        if peer not in self._peers:
            raise ValueError(f"no peer {peer!r}: `meet` it first")
        half = OpenHalf(address, name, peer, end is End.SENDER, str(self._directory), address)
        self._halves[address] = half
        self._tell(half)

    def part(self, address: str) -> None:
        """Let go of a ring that was joined; it stays, and its ends find it empty.

        Returns once the link has let go: it would join the ring again when that is renewed, and
        what is sent next would be lost when it is joined by another name.
        """
        if self._halves.pop(address, None) is not None:
            self._tell(CloseHalf(address, is_awaited=True))
            self._wait_until_closed()
            renew_joined(self._rings(), address)

    def _wait_until_closed(self) -> None:
        try:
            self._closed.recv(1)
        except TimeoutError:
            logger.error("the link of node %s lets go of no ring: it is started again", self.name)
            self._process.kill()
        except OSError:
            return  # it has ended, and holds nothing

    def renew(self, address: str) -> None:
        """Empty a channel one end of which has died; the other node's ring is renewed by its link.

        One of the two nodes is enough. An end on the other node goes over a moment later; what is
        sent here meanwhile waits for that. Raises NoChannel.
        """
        self._rings().renew(self._ring(address))

    def usage(self, address: str) -> ChannelUsage:
        """Returns what went through and what is in it, as the ring of this node has it; raises
        NoChannel.

        Each node knows its own end's counts at once, the other's as of the last word of its link.
        """
        return self._rings().usage(self._ring(address))

    def destroy(self, address: str) -> None:
        """Remove this node's ring; a missing one is fine. The other node removes its own."""
        half = self._halves.pop(address, None)
        if half is not None:
            self._tell(CloseHalf(address))
            self._rings().destroy(half.ring)

    def _ring(self, address: str) -> str:
        try:
            return self._halves[address].ring
        except KeyError:
            raise NoChannel(f"no channel {address!r} in {self._directory}") from None

    def _rings(self, options: ShmOptions | None = None) -> ShmConnector:
        return ShmConnector(self._directory, options)

    # Life

    def events(self) -> list[PeerUp | PeerLost | LinkEnded | Trouble]:
        """Returns what has happened since the last call, oldest first.

        Before PeerLost and LinkEnded the rings of the channels that are lost have been renewed.
        """
        happened: list[PeerUp | PeerLost | LinkEnded | Trouble] = []
        while (event := self._next()) is not None:
            if isinstance(event, LinkStarted):
                self._num_failed_starts = 0
                self._owner.settimeout(TELL_S)
                self._closed.settimeout(CLOSE_S)
            else:
                happened.append(event)
        return happened

    def restart(self) -> None:
        """End the link, which may hang, and start another; its peers lose it, then find it."""
        self._process.kill()
        self._reap()
        self._renew_joined()
        self._start()

    def close(self) -> None:
        """End the link; the rings stay until they are destroyed."""
        self._process.kill()  # it holds nothing
        self._reap()
        self._poll.close()
        self._listener.close()

    def _start(self) -> None:
        self._owner, theirs = new_channel()
        self._closed, closed = new_channel()
        self._owner.settimeout(START_S)
        self._closed.settimeout(START_S)
        peers, halves = tuple(self._peers.values()), tuple(self._halves.values())
        with theirs, closed, _file(Begin(self.name, self._settings, peers, halves)) as begin:
            files = theirs.fileno(), self._listener.fileno(), closed.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omnistage.connectors.tcp.link", *map(str, files)],
                stdin=begin,
                pass_fds=files,
                start_new_session=True,
            )
        self._poll.register(self._owner, select.EPOLLIN)

    def _tell(self, order: Order) -> None:
        try:
            self._owner.send(encoded(order))
        except TimeoutError:
            logger.error("the link of node %s hangs: it is started again", self.name)
            self._process.kill()
        except OSError:
            return  # it has ended: `events` says so, starts it again, and tells it all

    def _next(self) -> Event | None:
        if not self._poll.poll(0):
            return None
        try:
            said = self._owner.recv(MAX_BYTES)
        except OSError:
            said = b""
        return EVENTS.decode(said) if said else self._replace()

    def _replace(self) -> LinkEnded:
        """The link has ended by itself."""
        self._reap()
        self._renew_joined()
        why = f"it ended with {self._process.returncode}"
        self._num_failed_starts += 1
        is_final = self._num_failed_starts >= MAX_FAILED_STARTS
        if not is_final:
            self._start()
        return LinkEnded(why, is_final)

    def _reap(self) -> None:
        if self._owner.fileno() >= 0:
            self._poll.unregister(self._owner)
            self._owner.close()
            self._closed.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _renew_joined(self) -> None:
        for half in self._halves.values():
            renew_joined(self._rings(), half.ring)


def _file(begin: Begin) -> BinaryIO:
    """In memory, to be read from its start."""
    file = os.fdopen(os.memfd_create("begin"), "w+b")
    file.write(encoded(begin))
    file.seek(0)
    return file


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)
