"""Connections whose other side has not proved yet that it is a peer of this run."""

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from omnistage.connectors.tcp.connection import Hearer, PeerConnection
from omnistage.connectors.tcp.handshake import Identity, accept, connect
from omnistage.connectors.tcp.orders import Event, LinkSettings, Trouble
from omnistage.connectors.tcp.peer import Peer
from omnistage.connectors.tcp.waiting import Waiting
from omnistage.connectors.tcp.wire import TlsWire, Wire, connecting, tls_context

REDIAL_S = 0.1
MAX_STRANGERS = 64  # that have not proved themselves; the oldest goes first
TELL_REFUSED_S = 60.0


class Owner(Hearer, Protocol):
    """The link, which has the connections that are proved."""

    def tell(self, event: Event) -> None:
        """Tell the owner of the link."""

    def use(self, connection: PeerConnection) -> None:
        """Let a connection go on; it may be the end of it."""

    def end(self, connection: PeerConnection) -> None:
        """Close a connection, and forget it."""


class Strangers:
    """Accepts and dials; who has not proved itself in time is refused."""

    def __init__(
        self, link: Owner, waiting: Waiting, settings: LinkSettings, identity: Identity
    ) -> None:
        self._link, self._waiting = link, waiting
        self._settings, self._identity = settings, identity
        self._contexts = _contexts(settings)
        self._unproved: dict[PeerConnection, Peer | None] = {}
        self._num_refused, self._tell_refused_at = 0, 0.0

    def __iter__(self) -> Iterator[PeerConnection]:
        return iter(self._unproved)

    def __contains__(self, connection: PeerConnection) -> bool:
        return connection in self._unproved

    @property
    def due_at(self) -> list[float]:
        """Returns when each has to have proved itself."""
        return [one.begun_at + self._settings.handshake_s for one in self]

    def refuse_silent(self, now: float) -> None:
        """Refuse those whose time is over."""
        handshake_s = self._settings.handshake_s
        for connection in [one for one in self if now > one.begun_at + handshake_s]:
            self.refuse(connection, "it says nothing")

    def dialled(self, connection: PeerConnection) -> Peer | None:
        """The peer that was dialled; None: it has dialled us."""
        return self._unproved[connection]

    def forget(self, connection: PeerConnection) -> None:
        """Forget one that has proved itself, or ended."""
        self._unproved.pop(connection, None)

    def _wire(self, connected: socket.socket, accepts: bool) -> Wire:
        if not self._contexts:
            return Wire(connected)
        return TlsWire(connected, self._contexts[accepts], accepts)

    def accept(self, listener: socket.socket) -> None:
        """Let somebody begin to prove to be a peer; the oldest stranger goes if there are many."""
        try:
            connected, _ = listener.accept()
        except OSError:
            return
        strangers = [one for one, dialled in self._unproved.items() if dialled is None]
        if len(strangers) >= MAX_STRANGERS:
            self.refuse(strangers[0], "too many at once")
        self._link.use(self._welcome(self._wire(connected, accepts=True), None))

    def dial(self, peer: Peer) -> None:
        """Begin a connection to a peer, which has to prove itself, too."""
        peer.dial_at = 0.0
        try:
            begun = connecting(peer.meet.host, peer.meet.port)
        except OSError:  # it has no route, as while a network is down
            peer.dial_at = time.monotonic() + REDIAL_S
            return
        self._welcome(self._wire(begun, accepts=False), peer).begin()

    def _welcome(self, wire: Wire, dialled: Peer | None) -> PeerConnection:
        """A connection whose other side has to prove itself."""
        shake = accept if dialled is None else connect
        file = wire.fileno()

        def wants_write(is_wanted: bool) -> None:
            self._waiting.want_write(file, is_wanted)

        connection = PeerConnection(
            wire, shake(self._settings.secret, self._identity), self._link, wants_write
        )
        self._unproved[connection] = dialled
        self._waiting.add(file, lambda: self._link.use(connection))
        return connection

    def refuse(self, connection: PeerConnection, why: str, has_left: bool = False) -> None:
        """Whoever it is has not proved to be of this run; who left by itself is not told of."""
        dialled = self._unproved[connection]
        self._link.end(connection)
        if dialled is not None:
            dialled.dial_at = time.monotonic() + REDIAL_S
            return
        if has_left:
            return
        self._num_refused += 1
        now = time.monotonic()
        if now >= self._tell_refused_at:
            self._tell_refused_at = now + TELL_REFUSED_S
            self._link.tell(
                Trouble(f"{self._num_refused} connections were refused, the last: {why}")
            )


def _contexts(settings: LinkSettings) -> dict[bool, ssl.SSLContext]:
    """For what is accepted and what is dialled; none without a certificate."""
    if not settings.certificate:
        return {}
    files = Path(settings.certificate), Path(settings.key)
    return {accepts: tls_context(*files, accepts) for accepts in (True, False)}
