"""The process that joins the rings of its node to those of other nodes.

Its owner tells it which peers and channels there are, at its start in a file, then over a socket
over which it hears of peers that come and go (`orders.py`). It ends when that socket does.
"""

import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from omnistage.connectors.contract import NoChannel
from omnistage.connectors.tcp.clocks import Reckoning, reckon
from omnistage.connectors.tcp.connection import PeerConnection
from omnistage.connectors.tcp.frames import BEAT, READINGS, BadFrame, frame
from omnistage.connectors.tcp.handshake import Identity, Stranger, own_identity
from omnistage.connectors.tcp.joined_channels import JoinedChannels
from omnistage.connectors.tcp.orders import (
    BEGIN,
    MAX_BYTES,
    ORDERS,
    Begin,
    CloseHalf,
    Event,
    Leave,
    LinkSettings,
    LinkStarted,
    Meet,
    OpenHalf,
    Order,
    PeerLost,
    PeerUp,
    encoded,
)
from omnistage.connectors.tcp.peer import Peer
from omnistage.connectors.tcp.strangers import REDIAL_S, Strangers
from omnistage.connectors.tcp.waiting import Waiting


class Link:
    """All connections and halves of a node, in one loop that waits for any of them."""

    def __init__(self, files: Sequence[socket.socket], begin: Begin) -> None:
        """`files`: the owner's, the one that listens, and the one that says what is closed."""
        for file in files:
            file.setblocking(False)
        self._owner, listener, self._closed = files
        self._waiting = Waiting()
        self._peers: dict[str, Peer] = {}
        self._channels = JoinedChannels(self._peers, self._waiting, self.tell, self._flush)
        self._settings: LinkSettings = begin.settings
        self._identity = own_identity(begin.name)
        self._strangers = Strangers(self, self._waiting, begin.settings, self._identity)
        self._beat_at = time.monotonic()
        for meet in begin.peers:
            self._meet(meet)
        for half in begin.halves:
            self._channels.open(half)
        self._waiting.add(self._owner.fileno(), self._obey)
        self._waiting.add(listener.fileno(), partial(self._strangers.accept, listener))
        self.tell(LinkStarted())

    # Waiting

    def run(self) -> None:
        """Until the owner is gone."""
        now = time.monotonic()
        while self._waiting.has_files:
            awake_by = now + (sleep_s := self._sleep_s(now))
            self._waiting.wait(sleep_s)
            now = time.monotonic()
            self._excuse(now - awake_by, now)
            self._keep_time(now)

    def _excuse(self, late_s: float, now: float) -> None:
        """Count no time as silence of peers in which this process did not run itself."""
        if late_s > self._settings.beat_s:
            for connection in (*self._strangers, *(one for _, one in self._open())):
                connection.excuse(late_s, now)

    def _sleep_s(self, now: float) -> float:
        times = [self._beat_at, *self._strangers.due_at]
        times += [peer.dial_at for peer in self._peers.values() if peer.dial_at]
        times += [one.heard_at + self._settings.patience_s for _, one in self._open()]
        return max(0.0, min(times) - now)

    def _open(self) -> list[tuple[Peer, PeerConnection]]:
        return [(one, one.connection) for one in self._peers.values() if one.connection is not None]

    def _keep_time(self, now: float) -> None:
        self._strangers.refuse_silent(now)
        for peer, connection in self._open():
            if now > connection.heard_at + self._settings.patience_s:
                why = f"nothing was heard of it for {self._settings.patience_s:g} s"
                self._lose(peer, why, is_silent=True)
        if now >= self._beat_at:
            self._beat_at = now + self._settings.beat_s
            for peer, connection in self._open():
                self._beat(peer, connection)
        for peer in self._peers.values():
            if peer.dial_at and now >= peer.dial_at:
                self._strangers.dial(peer)

    # The owner

    def tell(self, event: Event) -> None:
        """Tell the owner, if it is there."""
        try:
            self._owner.send(encoded(event))
        except OSError:
            return  # it is gone, or has not listened for long

    def _obey(self) -> None:
        try:
            said = self._owner.recv(MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self._do(ORDERS.decode(said))
        else:
            self._waiting.end()

    def _do(self, order: Order) -> None:
        match order:
            case Meet():
                self._meet(order)
            case Leave():
                self._leave(order.peer)
            case OpenHalf():
                self._channels.open(order)
            case CloseHalf():
                self._channels.close(order.address)
                if order.is_awaited:
                    with suppress(OSError):  # who waited is gone
                        self._closed.send(b"\0")

    # Peers

    def _meet(self, order: Meet) -> None:
        self._leave(order.peer)
        peer = self._peers[order.peer] = Peer(order)
        peer.dial_at = time.monotonic() if order.connects else 0.0

    def _leave(self, name: str) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        for address in [*peer.senders, *peer.receivers]:
            self._channels.close(address)
        if peer.connection is not None:
            self.end(peer.connection)
        del self._peers[name]

    def use(self, connection: PeerConnection) -> None:
        """Let a connection go on; it may be the end of it."""
        try:
            connection.on_ready()
        except (OSError, Stranger, BadFrame) as error:
            self._fail(connection, str(error), isinstance(error, ConnectionError))

    def _flush(self, connection: PeerConnection) -> None:
        try:
            connection.flush()
        except OSError as error:
            self._fail(connection, str(error))

    def _fail(self, connection: PeerConnection, why: str, has_left: bool = False) -> None:
        if connection in self._strangers:
            self._strangers.refuse(connection, why, has_left)
        elif (peer := self._peer_of(connection)) is not None:
            self._lose(peer, why)

    def end(self, connection: PeerConnection) -> None:
        """Close a connection, and forget it."""
        self._strangers.forget(connection)
        self._waiting.remove(connection.fileno())
        connection.close()

    def _lose(self, peer: Peer, why: str, is_silent: bool = False) -> None:
        """Renew what was joined over this connection, then say so."""
        assert peer.connection is not None
        self.end(peer.connection)
        peer.connection = None
        was_up = peer.clock is not None
        peer.reset()
        for half in peer.halves:
            self._channels.lose(half)
        if peer.meet.connects:
            peer.dial_at = time.monotonic() + REDIAL_S
        if was_up:
            self.tell(PeerLost(peer.meet.peer, why, is_silent))

    def on_open(self, connection: PeerConnection, identity: Identity) -> None:
        """A connection's other side knows the secret."""
        peer = self._peers.get(identity.name)
        dialled = self._strangers.dialled(connection)
        if peer is None or dialled not in (None, peer):
            raise Stranger(f"{identity.name!r} is not expected")
        if peer.connection is not None:
            self._lose(peer, "its link began anew")
        self._strangers.forget(connection)
        peer.dial_at = 0.0
        peer.connection = connection
        if connection.shares_clock(self._identity):
            self._note_clock(peer, Reckoning(0, 0, time.monotonic_ns()))
        self._beat(peer, connection)
        for half in peer.senders.values():
            self._channels.introduce(peer, half)

    # Beats and clocks

    def _beat(self, peer: Peer, connection: PeerConnection) -> None:
        readings = READINGS.pack(time.monotonic_ns(), *peer.heard_beat)
        connection.say(frame(BEAT, body=readings))
        self._flush(connection)

    def _hear_beat(self, peer: Peer, connection: PeerConnection, body: bytes) -> None:
        now = time.monotonic_ns()
        answered, sent, heard = READINGS.unpack(body)
        is_first = not peer.heard_beat[0]
        peer.heard_beat = answered, now
        if is_first:
            self._beat(peer, connection)  # so that the other can reckon soon
        if sent and not connection.shares_clock(self._identity):
            self._note_clock(peer, reckon(sent, heard, answered, now))

    def _note_clock(self, peer: Peer, clock: Reckoning) -> None:
        is_up = peer.clock is not None
        peer.note_clock(clock)
        if not is_up:
            self.tell(PeerUp(peer.meet.peer, clock.ahead_ns))

    # Frames

    def _peer_of(self, connection: PeerConnection) -> Peer | None:
        """Whose connection it is, unless it was just lost."""
        peer = None if connection.peer is None else self._peers.get(connection.peer.name)
        return peer if peer is not None and peer.connection is connection else None

    def place(
        self, connection: PeerConnection, channel: int, generation: int, position: int, size: int
    ) -> memoryview | None:
        """Where bytes of a ring belong."""
        peer = self._peer_of(connection)
        half = None if peer is None else peer.filled_by(channel, generation)
        return None if half is None else half.place(position, size)

    def on_frame(
        self, connection: PeerConnection, kind: int, channel: int, generation: int, body: bytes
    ) -> None:
        """Do what a peer says."""
        peer = self._peer_of(connection)
        if peer is None:
            return
        try:
            if kind == BEAT:
                self._hear_beat(peer, connection, body)
            else:
                self._channels.hear(peer, kind, channel, generation, body)
        except NoChannel:
            return  # it was destroyed here: its owner says so soon
        except (struct.error, UnicodeDecodeError) as error:
            raise BadFrame(f"frame {kind}: {error}") from error


def main() -> None:
    """Run with the descriptors of its sockets."""
    files = [socket.socket(fileno=int(file)) for file in sys.argv[1:4]]
    Link(files, BEGIN.decode(sys.stdin.buffer.read())).run()


if __name__ == "__main__":
    main()
