"""Two links on the loopback of one machine, which join both rings of its channels."""

import logging
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from omnistage.connectors.contract import ChannelUsage, NoChannel
from omnistage.connectors.shm import ShmConnector, ShmOptions
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.node_link import End, NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, LinkSettings, PeerLost, PeerUp, Trouble
from omnistage.connectors.tcp.rings import renew_joined, ring_name

logger = logging.getLogger(__name__)

NEAR, FAR = "near", "far"
LOOPBACK = "127.0.0.1"
PATIENCE_S = 5.0  # a busy machine lets a link wait for seconds; a link that ends is seen at once


class Pair:
    """The links of a run directory: the near one reads what is sent, the far one delivers it."""

    def __init__(self, directory: Path) -> None:
        settings = LinkSettings(secret=new_secret(), host=LOOPBACK, patience_s=PATIENCE_S)
        self._rings = ShmConnector(directory)
        self.near = NodeLink(NEAR, directory, settings)
        self.far = NodeLink(FAR, directory, settings)
        self.near.meet(FAR, LOOPBACK, self.far.port)
        self.far.meet(NEAR, LOOPBACK, self.near.port)
        self._poll = select.epoll()
        for link in (self.near, self.far):
            self._poll.register(link, select.EPOLLIN)
        self._addresses: set[str] = set()
        self._num_created = 0
        self._is_lost = False  # from a loss until both links are up again
        self._up: set[str] = set()  # the links that are, since the last loss

    @property
    def is_idle(self) -> bool:
        """Returns whether it joins no channel."""
        return not self._addresses

    def create(self, address: str, options: ShmOptions) -> None:
        """Make both rings of a channel."""
        self._num_created += 1
        name = f"{address}#{self._num_created}"
        self.near.create(address, FAR, End.SENDER, options, name)
        self.far.create(address, NEAR, End.RECEIVER, options, name)
        self._addresses.add(address)

    def renew(self, address: str) -> None:
        """Empty both rings of a channel; raises NoChannel."""
        names = [ring_name(address, is_senders) for is_senders in (True, False)]
        wanted = 1 + max(self._rings.ring(name).generation for name in names)
        for name in names:
            self._rings.renew(name, wanted)

    def usage(self, address: str) -> ChannelUsage:
        """Returns what was sent by the near ring, what was received by the far one; raises
        NoChannel.
        """
        sent, received = (
            self._rings.ring(ring_name(address, is_senders)) for is_senders in (True, False)
        )
        try:
            return sent.usage_read_by(received)
        finally:
            sent.release()
            received.release()

    def destroy(self, address: str) -> None:
        """Remove both rings of a channel."""
        self._addresses.discard(address)
        self.near.destroy(address)
        self.far.destroy(address)

    def fileno(self) -> int:
        """Readable when something has happened to a link: then call `losses`."""
        return self._poll.fileno()

    def losses(self) -> Sequence[str]:
        """The channels that were lost, and renewed, since the last call; starts links again.

        Both links tell of one loss; it counts once.
        """
        was_told = [self._listen(self.near, self.far), self._listen(self.far, self.near)]
        if not any(was_told):
            return ()
        for address in self._addresses:
            self._renew_joined(address)
        return sorted(self._addresses)

    def _listen(self, link: NodeLink, other: NodeLink) -> bool:
        """Returns whether it tells of a loss that is not known."""
        is_new = False
        for event in link.events():
            match event:
                case PeerUp():
                    self._up.add(link.name)
                    self._is_lost &= self._up != {NEAR, FAR}
                case PeerLost(why=why):
                    logger.warning("the %s link lost the %s one: %s", link.name, other.name, why)
                    is_new |= self._lose(link)
                    if event.is_silent:
                        other.restart()
                case LinkEnded(why=why):
                    logger.error("the %s link ended: %s", link.name, why)
                    is_new |= self._lose(link)
                case Trouble(text=text):
                    logger.warning("the %s link: %s", link.name, text)
        return is_new

    def _lose(self, link: NodeLink) -> bool:
        """Note a loss that a link tells; returns whether the other has not told of it.

        One may be up again before the other comes to tell: until it is up, too, it tells of the
        loss that is known.
        """
        if self._is_lost and link.name not in self._up:
            return False
        self._is_lost = True
        self._up.clear()
        return True

    def _renew_joined(self, address: str) -> None:
        with suppress(NoChannel):
            for is_senders in (True, False):
                renew_joined(self._rings, ring_name(address, is_senders))

    def close(self) -> None:
        """End both links."""
        self._poll.close()
        self.near.close()
        self.far.close()
