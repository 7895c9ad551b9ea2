"""Knows another node, and what lies between it and this one."""

from omnistage.connectors.tcp.clocks import Reckoning
from omnistage.connectors.tcp.connection import PeerConnection
from omnistage.connectors.tcp.halves import ReceiverHalf, SenderHalf
from omnistage.connectors.tcp.orders import Meet

EitherHalf = SenderHalf | ReceiverHalf


class JoiningChannel:
    """A peer's announcement of a channel that is not here yet."""

    def __init__(self, number: int, generation: int, size: int) -> None:
        self.number, self.generation, self.size = number, generation, size


class Peer:
    """Another node, and what lies between it and this one."""

    def __init__(self, meet: Meet) -> None:
        self.meet = meet
        self.connection: PeerConnection | None = None
        self.dial_at = 0.0
        self.senders: dict[str, SenderHalf] = {}
        self.receivers: dict[str, ReceiverHalf] = {}
        self.by_number: dict[int, SenderHalf] = {}
        self.reset()

    @property
    def halves(self) -> list[EitherHalf]:
        """Returns the halves of all channels to and from it."""
        return [*self.senders.values(), *self.receivers.values()]

    def reset(self) -> None:
        """A connection has begun, or ended."""
        self.clock: Reckoning | None = None  # the surest; with the first the peer is up
        self.heard_beat = (0, 0)  # the peer's clock in it, and ours when it came
        self.joining: dict[str, JoiningChannel] = {}
        self.filled: dict[int, ReceiverHalf] = {}  # by the peer's numbers

    def note_clock(self, clock: Reckoning) -> None:
        """Keep the surest reckoning of its clock, by which its stamps are read."""
        if self.clock is None or clock.is_surer(self.clock):
            self.clock = clock
            for half in self.receivers.values():
                half.set_clock(-clock.ahead_ns)

    def filled_by(self, channel: int, generation: int) -> ReceiverHalf | None:
        """The half that its channel fills; None for one of another generation."""
        half = self.filled.get(channel)
        return half if half is not None and half.shared_generation == generation else None
