"""Calls of the gateway to a node, and news from there: plain data, however the calls come."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.stages.messages.loading import Loading


class Line(NamedTuple):
    """A line of a node's log: of a stage, or of the agent itself."""

    stage: str
    level: int
    text: str


class Loss(NamedTuple):
    """A link that was lost with all that was on its way; `peer` is the other node's name."""

    peer: str
    why: str
    is_silent: bool


class News(NamedTuple):
    """News from a node: lines, how far its stages have loaded, lost links."""

    lines: Sequence[Line] = ()
    loading: Mapping[str, Loading | None] = MappingProxyType({})
    losses: Sequence[Loss] = ()


class Node(NamedTuple):
    """A node as its agent sees it: `port` is its link's."""

    host: str
    version: str  # of this package
    port: int


class NodeHalf(NamedTuple):
    """One end of a channel whose other end is on another node, the peer.

    `name`: that of their joint, the same for both ends and new each time.
    """

    address: str
    name: str
    peer: str
    sends: bool


class Agent(Protocol):
    """The calls that the gateway makes to a node."""

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        """Make the run's folders and channels, and start the node's link, which has this name.

        `environment` is for every stage.
        """

    async def has_folder(self, path: str) -> bool:
        """Returns whether a folder is there."""

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        """Start a stage's process."""

    async def wait(self, stage: str) -> str:
        """How it ended, once it has."""

    async def kill(self, stage: str) -> None:
        """End it at once, with everything below it, if it could be started."""

    async def stop(self, stage: str, grace_s: float) -> None:
        """End it, if it could be started: it gets `grace_s` to do it by itself."""

    async def renew(self, stage: str) -> None:
        """Empty the channels that a stage has an end of: it starts again, here or elsewhere."""

    async def meet(self, peer: str, host: str, port: int) -> None:
        """There is another node, whose link listens there."""

    async def leave(self, peer: str) -> None:
        """Another node is gone."""

    async def join(self, halves: Sequence[NodeHalf]) -> None:
        """Have these channels go on to other nodes."""

    async def part(self, addresses: Sequence[str]) -> None:
        """Have these channels go on to no other node any more."""

    async def restart_link(self) -> None:
        """A peer has heard nothing of this node's link."""

    async def news(self) -> News:
        """Returns what is new, once something is, or nothing after a while."""

    async def close(self) -> None:
        """End what still runs and remove all that the run has here."""
