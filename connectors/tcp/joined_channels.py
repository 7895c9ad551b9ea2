"""Joins rings of this node with those of its peers, channel by channel."""

from collections.abc import Callable, Mapping
from pathlib import Path

from omnistage.connectors.contract import NoChannel
from omnistage.connectors.shm import ShmConnector
from omnistage.connectors.tcp.connection import PeerConnection
from omnistage.connectors.tcp.frames import (
    BACK,
    HEAD,
    JOIN,
    JOINED,
    JOINING,
    PART,
    BadFrame,
    frame,
)
from omnistage.connectors.tcp.halves import ReceiverHalf, SenderHalf
from omnistage.connectors.tcp.orders import Event, OpenHalf, Trouble
from omnistage.connectors.tcp.peer import EitherHalf, JoiningChannel, Peer
from omnistage.connectors.tcp.waiting import Waiting


class JoinedChannels:
    """Owns this node's halves; peers are named by their link, which sends what is told."""

    def __init__(
        self,
        peers: Mapping[str, Peer],
        waiting: Waiting,
        tell: Callable[[Event], None],
        flush: Callable[[PeerConnection], None],
    ) -> None:
        self._peers, self._waiting, self._tell, self._flush = peers, waiting, tell, flush
        self._halves: dict[str, tuple[Peer, EitherHalf]] = {}
        self._num_made = 0

    def open(self, order: OpenHalf) -> None:
        """Open our half of a channel, in place of one of the same address."""
        self.close(order.address)
        peer = self._peers.get(order.peer)
        if peer is None:
            self._tell(Trouble(f"channel {order.address}: no peer {order.peer!r} is known"))
            return
        rings = ShmConnector(Path(order.directory))
        try:
            if order.sends:
                self._open_sender(peer, order.address, SenderHalf(rings, order.ring, order.name))
            else:
                self._open_receiver(
                    peer, order.address, ReceiverHalf(rings, order.ring, order.name)
                )
        except NoChannel as error:
            self._tell(Trouble(str(error)))

    def _open_sender(self, peer: Peer, address: str, half: SenderHalf) -> None:
        self._num_made += 1
        half.number = self._num_made
        self._halves[address] = peer, half
        peer.senders[half.name] = peer.by_number[half.number] = half
        self._waiting.add(half.fileno(), lambda: self._wake_sender(peer, half))
        self.introduce(peer, half)

    def _open_receiver(self, peer: Peer, address: str, half: ReceiverHalf) -> None:
        self._halves[address] = peer, half
        peer.receivers[half.name] = half
        self._waiting.add(half.fileno(), lambda: self._wake_receiver(peer, half))
        self._join(peer, half.name)

    def close(self, address: str) -> None:
        """Close a half, if there is one of this address."""
        found = self._halves.pop(address, None)
        if found is None:
            return
        peer, half = found
        self._waiting.remove(half.fileno())
        if peer.connection is not None:
            peer.connection.silence(half)
        if isinstance(half, SenderHalf):
            del peer.senders[half.name]
            del peer.by_number[half.number]
            self._part(peer, half)
        else:
            del peer.receivers[half.name]
            peer.filled = {key: one for key, one in peer.filled.items() if one is not half}
        half.close()

    def lose(self, half: EitherHalf) -> None:
        """Renew what was joined over a connection that has ended."""
        try:
            half.lose()
        except NoChannel:
            self._forget_half(half)

    def _forget_half(self, half: EitherHalf) -> None:
        """Forgets a half whose channel was destroyed before the announcement came."""
        for address in [key for key, (_, one) in self._halves.items() if one is half]:
            self.close(address)

    def introduce(self, peer: Peer, half: SenderHalf) -> None:
        """Tell the receiver's node which ring the channel has here."""
        if peer.connection is not None:
            body = JOINING.pack(half.size) + half.name.encode()
            peer.connection.say(frame(JOIN, half.number, half.generation, body))
            self._flush(peer.connection)

    def _part(self, peer: Peer, half: SenderHalf) -> None:
        """Tell the receiver's node that the channel is no more."""
        if peer.connection is not None:
            peer.connection.say(frame(PART, half.number, body=half.name.encode()))
            self._flush(peer.connection)

    def hear(self, peer: Peer, kind: int, number: int, generation: int, body: bytes) -> None:
        """Do what a peer says of a channel; BadFrame if the kind of frame is unknown."""
        filled, filling = peer.filled_by(number, generation), peer.by_number.get(number)
        if kind == HEAD:
            if filled is not None:
                filled.publish(body)
        elif kind == BACK:
            if filling is not None and filling.generation == generation:
                filling.take_back(body)
        elif kind == JOIN:
            self._hear_join(peer, number, generation, body)
        elif kind == PART:
            self._hear_part(peer, number, body.decode())
        elif kind == JOINED:
            if filling is not None:
                self._hear_joined(peer, filling, generation)
        else:
            raise BadFrame(f"a frame of kind {kind}")

    def _hear_part(self, peer: Peer, number: int, name: str) -> None:
        """A peer's channel is no more."""
        peer.joining.pop(name, None)
        half = peer.filled.pop(number, None)
        if half is not None:
            half.part()

    def _hear_join(self, peer: Peer, number: int, generation: int, body: bytes) -> None:
        """A peer announces the ring of a channel to us."""
        size = JOINING.unpack_from(body)[0]
        name = body[JOINING.size :].decode()
        peer.joining[name] = JoiningChannel(number, generation, size)
        self._join(peer, name)

    def _join(self, peer: Peer, name: str) -> None:
        """Join the two rings of a channel whose receiver is here, once both are known."""
        half, joining = peer.receivers.get(name), peer.joining.get(name)
        if half is None or joining is None:
            return
        if half.size != joining.size:
            sizes = f"{joining.size} and {half.size} bytes"
            self._tell(Trouble(f"channel {name}: its rings have {sizes}: arena_mb must agree"))
            return
        half.number = joining.number
        peer.filled[half.number] = half
        half.meet(joining.generation)
        self._answer(peer, half)

    def _answer(self, peer: Peer, half: ReceiverHalf) -> None:
        """Tell the sender's node which generation of the ring may be filled."""
        if peer.connection is not None and peer.filled.get(half.number) is half:
            half.join()
            half.set_clock(-peer.clock.ahead_ns if peer.clock else 0)
            peer.connection.say(frame(JOINED, half.number, half.shared_generation))
            self._flush(peer.connection)

    def _hear_joined(self, peer: Peer, half: SenderHalf, generation: int) -> None:
        """A peer says which generation of our ring may be filled."""
        if generation > half.generation:
            half.renew(generation)
        if generation < half.generation:
            self.introduce(peer, half)
        else:
            half.join()
            self._speak(peer, half)

    def _wake_sender(self, peer: Peer, half: SenderHalf) -> None:
        try:
            is_new = half.awake()
        except NoChannel:
            return self._forget_half(half)
        return self.introduce(peer, half) if is_new else self._speak(peer, half)

    def _wake_receiver(self, peer: Peer, half: ReceiverHalf) -> None:
        try:
            is_new = half.awake()
        except NoChannel:
            return self._forget_half(half)
        return self._answer(peer, half) if is_new else self._speak(peer, half)

    def _speak(self, peer: Peer, half: EitherHalf) -> None:
        if peer.connection is not None and half.is_joined:
            peer.connection.let_speak(half)
            self._flush(peer.connection)
