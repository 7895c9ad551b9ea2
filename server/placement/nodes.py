"""The nodes that stages run on, as the gateway knows them: one agent each, and what it tells."""

import asyncio
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from omnistage.server.placement.agent import OURS, Agent, News
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import write_loading

logger = logging.getLogger(__name__)

OPEN_S = 120.0  # a node that has just joined starts Python for the first time
SILENT_S = 15.0  # an agent answers far more often


class NodeLost(Exception):
    """A node, or its agent, is gone; the message says which and why."""


class Cluster(Protocol):
    """What the nodes belong to; an agent's calls raise NodeLost."""

    async def node_of(self, stage: str) -> str | None:
        """The node on which there is room for a stage, kept for it; None: there is none now."""

    async def gpus_of(self, stage: str) -> Sequence[str]:
        """The GPUs of that node which are the stage's, as CUDA names them."""

    def agent_on(self, node: str) -> Agent:
        """A new agent on a node."""

    def drop(self, node: str) -> None:
        """End a node's agent and, with it, all that it started, as soon as it can be reached."""


class RunningNode:
    """One node with its agent."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self.agent = agent
        self._directory = directory
        self.host = ""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self, graph: str, environment: Mapping[str, str]) -> None:
        """Have the agent make what the run needs there, then follow what it tells."""
        try:
            async with asyncio.timeout(OPEN_S):
                told = await self.agent.open(graph, environment)
        except TimeoutError:
            raise NodeLost(f"a node did not answer for {OPEN_S:g} s") from None
        ours = importlib.metadata.version(OURS)
        if told.version != ours:
            raise NodeLost(f"node {told.host} has omnistage {told.version}, the gateway {ours}")
        self.host = told.host
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    news = await self.agent.news()
                self._tell(news)
        except NodeLost as error:
            self.lose(str(error))
        except TimeoutError:
            self.lose(f"node {self.host} has been silent for {SILENT_S:g} s")

    def lose(self, why: str) -> None:
        """All that runs there counts as ended."""
        if not self.lost.done():
            logger.error("%s", why)
            self.lost.set_result(why)

    def _tell(self, news: News) -> None:
        for line in news.lines:
            whose = {"stage": line.stage} if line.stage else None
            text = line.text if line.stage else f"node {self.host}: {line.text}"
            logger.log(line.level, "%s", text, extra=whose)
        for stage, told in news.loading.items():
            write_loading(self._directory, stage, told)

    async def close(self) -> None:
        """Remove what the run has there, if the node can still be reached."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        if not self.lost.done():
            try:
                async with asyncio.timeout(SILENT_S):
                    await self.agent.close()
            except (NodeLost, TimeoutError) as error:
                logger.warning("node %s could not be cleaned up: %s", self.host, error)


class Nodes:
    """Every node that has an agent of this run."""

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        environment: Mapping[str, str],
        cluster: Cluster,
    ) -> None:
        self.cluster = cluster
        self._graph = graph.model_dump_json()
        self._directory = directory
        self._environment = environment
        self._opening: dict[str, asyncio.Task[RunningNode]] = {}
        self._prepared: set[str] = set()

    async def on(self, name: str) -> RunningNode:
        """A node with an agent on it, a new one if the last is lost; raises NodeLost."""
        opening = self._opening.get(name)
        if opening is None or (opening.done() and _is_lost(opening)):
            opening = self._opening[name] = asyncio.create_task(self._open(name))
        return await asyncio.shield(opening)

    async def _open(self, name: str) -> RunningNode:
        node = RunningNode(self.cluster.agent_on(name), self._directory)
        try:
            await node.open(self._graph, self._environment)
        except NodeLost:
            self.cluster.drop(name)
            raise
        node.lost.add_done_callback(lambda _: self.cluster.drop(name))
        logger.info("node %s takes stages", node.host)
        return node

    async def prepare(self, stage: str) -> None:
        """Empty a stage's channels wherever they have an end, if it starts again."""
        if stage in self._prepared:
            await asyncio.gather(*(self._renew_on(node, stage) for node in self._running))
        self._prepared.add(stage)

    async def _renew_on(self, node: RunningNode, stage: str) -> None:
        try:
            await node.agent.renew(stage)
        except NodeLost as error:
            logger.warning("%s", error)

    @property
    def _running(self) -> list[RunningNode]:
        done = (one for one in self._opening.values() if one.done() and not _is_lost(one))
        return [one.result() for one in done]

    async def close(self) -> None:
        """Leave every node as it was found."""
        opening = self._opening.values()
        await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._running))
        for name in self._opening:
            self.cluster.drop(name)


def _is_lost(opening: asyncio.Task[RunningNode]) -> bool:
    return opening.exception() is not None or opening.result().lost.done()
