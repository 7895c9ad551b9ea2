"""A cluster whose nodes are objects of this process, on which stages are nothing but futures."""

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence

from omnistage.server.placement.agent import Line, News, Node
from omnistage.server.placement.nodes import NodeLost
from omnistage.stages.messages.loading import Loading

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
        self.is_closed = False
        self.is_deaf = False  # it answers no call any more
        self._said: asyncio.Queue[News] = asyncio.Queue()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def say(self, *lines: Line, **loading: Loading | None) -> None:
        """News for the gateway."""
        self._said.put_nowait(News(lines, loading))

    def die(self) -> None:
        """The node is gone: every call fails."""
        self._gone.set_exception(NodeLost(f"node {self.host} is gone"))

    async def _check(self) -> None:
        if self._gone.done():
            self._gone.result()
        if self.is_deaf:
            await asyncio.Event().wait()

    async def open(self, graph: str, environment: Mapping[str, str]) -> Node:
        await self._check()
        return Node(self.host, self.version)

    async def has_folder(self, path: str) -> bool:
        await self._check()
        return path in self.folders

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        await self._check()
        self.environments[stage] = environment
        self.ends[stage] = asyncio.get_running_loop().create_future()

    async def wait(self, stage: str) -> str:
        await asyncio.wait({self.ends[stage], self._gone}, return_when=asyncio.FIRST_COMPLETED)
        await self._check()
        return self.ends[stage].result()

    async def kill(self, stage: str) -> None:
        await self._check()
        self._end(stage, "signal SIGKILL")

    async def stop(self, stage: str, grace_s: float) -> None:
        await self._check()
        self._end(stage, "exit code 0")

    def _end(self, stage: str, how: str) -> None:
        if not self.ends[stage].done():
            self.ends[stage].set_result(how)

    async def renew(self, stage: str) -> None:
        await self._check()
        self.renewed.append(stage)

    async def news(self) -> News:
        await self._check()
        saying = asyncio.ensure_future(self._said.get())
        await asyncio.wait({saying, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        await self._check()
        return saying.result()

    async def close(self) -> None:
        await self._check()
        self.is_closed = True


class FakeCluster:
    """Places as the test says; each call of `agent_on` makes a new agent."""

    def __init__(self, folders: Sequence[str] = (), version: str = VERSION) -> None:
        self.places: dict[str, str] = {}
        self.gpus: dict[str, Sequence[str]] = {}
        self.agents: dict[str, list[FakeAgent]] = {}
        self.dropped: list[str] = []
        self._folders = folders
        self._version = version

    async def node_of(self, stage: str) -> str | None:
        return self.places.get(stage)

    async def gpus_of(self, stage: str) -> Sequence[str]:
        return self.gpus.get(stage, ())

    def agent_on(self, node: str) -> FakeAgent:
        agent = FakeAgent(node, self._folders, self._version)
        self.agents.setdefault(node, []).append(agent)
        return agent

    def drop(self, node: str) -> None:
        self.dropped.append(node)
