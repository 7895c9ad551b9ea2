"""A cluster whose nodes are objects of this process, on which stages are nothing but futures."""

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.server.placement.agent import Line, Loss, News, Node, NodeHalf
from omnistage.server.placement.nodes import NodeLost
from omnistage.stages.messages.loading import Loading

NEWS_S = 0.02
VERSION = importlib.metadata.version("omnistage")


class FakeAgent:
    """What was asked of a node, and what its stages do, as the test says."""

    def __init__(self, host: str, folders: Sequence[str] = (), version: str = VERSION) -> None:
        self.host = host
        self.version = version
        self.folders = folders
        self.environments: dict[str, Mapping[str, str]] = {}
        self.ends: dict[str, asyncio.Future[str]] = {}
        self.renewed: list[str] = []
        self.peers: list[str] = []
        self.joined: dict[str, NodeHalf] = {}
        self.num_link_starts = 0
        self.name = ""
        self.is_closed = False
        self.ignores = ""  # a call that never ends
        self.refuses = ""  # a stage whose process cannot be started
        self.is_deaf = False  # it answers no call any more
        self._said: asyncio.Queue[News] = asyncio.Queue()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def say(self, *lines: Line, **loading: Loading | None) -> None:
        """News for the gateway."""
        self._said.put_nowait(News(lines, loading))

    def die(self) -> None:
        """The node is gone: every call fails."""
        self._gone.set_exception(NodeLost("it was switched off"))

    async def _check(self) -> None:
        if self._gone.done():
            self._gone.result()
        if self.is_deaf:
            await asyncio.Event().wait()

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        await self._check()
        if self.ignores == "open":
            await asyncio.Event().wait()
        self.name = name
        self.num_link_starts += 1
        return Node(self.host, self.version, 1)

    async def meet(self, peer: str, host: str, port: int) -> None:
        await self._check()
        self.peers.append(peer)

    async def leave(self, peer: str) -> None:
        await self._check()
        self.peers.remove(peer)

    async def join(self, halves: Sequence[NodeHalf]) -> None:
        await self._check()
        for half in halves:
            assert half.address not in self.joined
            assert half.peer in self.peers
            self.joined[half.address] = half

    async def part(self, addresses: Sequence[str]) -> None:
        await self._check()
        for address in addresses:
            del self.joined[address]

    async def restart_link(self) -> None:
        await self._check()
        self.num_link_starts += 1

    def lose(self, peer: "FakeAgent", is_silent: bool = False) -> None:
        """Its link to another node is lost."""
        self._said.put_nowait(News(losses=[Loss(peer.name, "it broke", is_silent)]))

    async def has_folder(self, path: str) -> bool:
        await self._check()
        return path in self.folders

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        await self._check()
        if stage == self.refuses:
            raise BlockingIOError("no more processes")
        self.environments[stage] = environment
        self.ends[stage] = asyncio.get_running_loop().create_future()

    async def wait(self, stage: str) -> str:
        waits: set[asyncio.Future[Any]] = {self.ends[stage], self._gone}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await self._check()
        return self.ends[stage].result()

    async def kill(self, stage: str) -> None:
        await self._check()
        if self.ignores == "kill":
            await asyncio.Event().wait()
        self._end(stage, "signal SIGKILL")

    async def stop(self, stage: str, grace_s: float) -> None:
        await self._check()
        self._end(stage, "exit code 0")

    def _end(self, stage: str, how: str) -> None:
        if stage in self.ends and not self.ends[stage].done():
            self.ends[stage].set_result(how)

    async def renew(self, stage: str) -> None:
        await self._check()
        self.renewed.append(stage)

    async def news(self) -> News:
        await self._check()
        try:
            return await asyncio.wait_for(self._said.get(), NEWS_S)
        except TimeoutError:
            await self._check()
            return News()

    async def close(self) -> None:
        await self._check()
        self.is_closed = True


class FakeCluster:
    """Places as the test says; each call of `agent_on` makes a new agent."""

    home = "home"

    def __init__(self, folders: Sequence[str] = (), version: str = VERSION) -> None:
        self.places: dict[str, str] = {}
        self.gpus: dict[str, Sequence[str]] = {}
        self.agents: dict[str, list[FakeAgent]] = {}
        self.dropped: list[str] = []
        self.released: list[str] = []
        self.slow: set[str] = set()  # nodes whose agents do not get to `open`
        self._folders = folders
        self._version = version

    async def node_of(self, stage: str) -> str | None:
        return self.places.get(stage)

    async def gpus_of(self, stage: str) -> Sequence[str]:
        return self.gpus.get(stage, ())

    async def address_of(self, node: str) -> str:
        return "127.0.0.1"

    async def agent_on(self, node: str) -> FakeAgent:
        version = VERSION if node == self.home else self._version
        agent = FakeAgent(node, self._folders, version)
        agent.ignores = "open" if node in self.slow else ""
        self.agents.setdefault(node, []).append(agent)
        return agent

    async def release(self, stage: str) -> None:
        self.released.append(stage)

    def drop(self, node: str) -> None:
        self.dropped.append(node)
