"""The link of a node, heard by the event loop of the process that owns it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from omnistage.connectors.tcp.node_link import End, NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, PeerLost, PeerUp, Trouble
from omnistage.server.placement.agent import Loss, NodeHalf

logger = logging.getLogger(__name__)


class OwnLink:
    """The link of this process's node, heard by its event loop."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._peers: set[str] = set()
        self._losses: list[Loss] = []
        self._has_some = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link.fileno(), self._hear)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._link.port

    def meet(self, peer: str, host: str, port: int) -> None:
        """There is a peer."""
        self._peers.add(peer)
        self._link.meet(peer, host, port)

    def leave(self, peer: str) -> None:
        """There is none of this name any more."""
        self._peers.discard(peer)
        self._link.leave(peer)

    def join(self, half: NodeHalf) -> None:
        """Join this node's ring of a channel, which is there, to the peer's."""
        end = End.SENDER if half.sends else End.RECEIVER
        self._link.join(half.address, half.peer, end, half.name)

    def part(self, address: str) -> None:
        """Let go of a channel's ring."""
        self._link.part(address)

    def restart(self) -> None:
        """End it, as it may hang, and start another."""
        self._link.restart()
        self._lose_all("the link was started again")

    def take(self) -> Sequence[Loss]:
        """Returns what was lost since the last call."""
        losses, self._losses = self._losses, []
        self._has_some.clear()
        return losses

    async def wait(self, timeout_s: float) -> None:
        """Return when something was lost, at the latest after the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # Python 3.11's wait_for may lose a cancel
                await self._has_some.wait()

    def _hear(self) -> None:
        for event in self._link.events():
            match event:
                case PeerLost():
                    self._lose(event.peer, event.why, event.is_silent)
                case LinkEnded():
                    self._lose_all(event.why)
                case PeerUp():
                    logger.info("linked to %s", event.peer)
                case Trouble():
                    logger.warning("link: %s", event.text)

    def _lose_all(self, why: str) -> None:
        for peer in self._peers:
            self._lose(peer, why, is_silent=False)

    def _lose(self, peer: str, why: str, is_silent: bool) -> None:
        if peer in self._peers:
            self._losses.append(Loss(peer, why, is_silent))
            self._has_some.set()

    def close(self) -> None:
        """End it."""
        self._loop.remove_reader(self._link.fileno())
        self._link.close()
