"""The nodes that stages run on, as the gateway knows them: one agent each, and what it tells."""

import asyncio
import importlib.metadata
import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from omnistage.connectors import make_connector
from omnistage.connectors.standstill import patience
from omnistage.connectors.tcp.handshake import new_secret
from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.server.placement.agent import Agent, Loss, News
from omnistage.server.placement.joints import Joints
from omnistage.server.placement.node_agent import OURS
from omnistage.server.runtime.processes.channels import Channels
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import write_loading

logger = logging.getLogger(__name__)

OPEN_S = 120.0  # a node that has just joined starts Python for the first time


class NodeLost(Exception):
    """A node, or its agent, is gone; the message says which and why."""


class Cluster(Protocol):
    """The cluster of the nodes; an agent's calls raise NodeLost."""

    home: str  # the node that the gateway is on

    async def node_of(self, stage: str) -> str | None:
        """The node on which there is room for a stage, kept for it; None: there is none now."""

    async def gpus_of(self, stage: str) -> Sequence[str]:
        """The GPUs of that node which are the stage's, as CUDA names them."""

    async def address_of(self, node: str) -> str:
        """Where the other nodes reach a node, as numbers."""

    async def agent_on(self, node: str) -> Agent:
        """A new agent on a node."""

    async def release(self, stage: str) -> None:
        """A replica is gone: nothing is kept for it, unless others were asked for with it."""

    def drop(self, node: str) -> None:
        """End a node's agent and, with it, all that it started, as soon as it can be reached."""


class RunningNode:
    """One node with its agent; `name` is its link's and is never used again.

    It is lost once its agent is gone, or has not answered for `hang_s`.
    """

    def __init__(self, name: str, agent: Agent, directory: Path, hang_s: float) -> None:
        self.name = name
        self._hang_s = hang_s
        self.agent = agent
        self._directory = directory
        self.host = ""
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.unlinked: asyncio.Future[str] = loop.create_future()

    @property
    def is_lost(self) -> bool:
        """Returns whether it is gone, or counts as gone."""
        return self.lost.done()

    async def open(self, graph: str, environment: Mapping[str, str], link: LinkSettings) -> None:
        """Have the agent make what the run needs there."""
        try:
            async with asyncio.timeout(OPEN_S):
                told = await self.agent.open(self.name, graph, environment, link)
        except TimeoutError:
            raise NodeLost(f"the node at {link.host} did not answer for {OPEN_S:g} s") from None
        ours = importlib.metadata.version(OURS)
        if told.version != ours:
            raise NodeLost(f"node {told.host} has omnistage {told.version}, the gateway {ours}")
        self.host = told.host
        self.address, self.port = link.host, told.port

    def follow(self, on_losses: Callable[["RunningNode", Sequence[Loss]], None]) -> None:
        """From now on log what it tells, and hand on what it has lost."""
        self._following = asyncio.create_task(self._follow(on_losses))

    async def _follow(self, on_losses: Callable[["RunningNode", Sequence[Loss]], None]) -> None:
        try:
            while True:
                async with patience(self._hang_s):
                    news = await self.agent.news()
                self._tell(news)
                on_losses(self, news.losses)
        except NodeLost as error:
            self.lose(self.gone(error))
        except TimeoutError:
            self.lose(f"node {self.host} has been silent for {self._hang_s:g} s")

    def lose(self, why: str) -> None:
        """All that runs there counts as ended."""
        if not self.lost.done():
            logger.error("%s", why)
            self.lost.set_result(why)

    def gone(self, error: NodeLost) -> str:
        """Returns what a failed call of the agent means."""
        return f"node {self.host} is gone: {error}"

    def unlink(self, why: str) -> None:
        """Drops all that was on its way between the node and the gateway; its stages run on."""
        before = self.unlinked
        self.unlinked = asyncio.get_running_loop().create_future()
        before.set_result(why)

    def _tell(self, news: News) -> None:
        for line in news.lines:
            whose = {"stage": line.stage} if line.stage else None
            text = line.text if line.stage else f"node {self.host}: {line.text}"
            logger.log(line.level, "%s", text, extra=whose)
        for stage, told in news.loading.items():
            write_loading(self._directory, stage, told)

    async def ask(self, asked: Coroutine[object, object, None], more_s: float = 0) -> None:
        """Have the agent do something, for which it may take longer than another call."""
        patience_s = self._hang_s + more_s
        try:
            async with patience(patience_s):
                await asked
        except NodeLost as error:
            self.lose(self.gone(error))
        except TimeoutError:
            self.lose(f"node {self.host} did not do within {patience_s:g} s what it was asked")

    async def close(self) -> None:
        """Remove what the run has there, if the node can still be reached."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        if not self.is_lost:
            await self.ask(self.agent.close())


OnLoss = Callable[[Collection[tuple[str, str]]], None]


class Nodes:
    """Every node that has an agent of this run.

    `on_loss` is called when what was under way between two nodes is gone, with the edges between
    them by their ends.
    """

    def __init__(
        self,
        graph: StageGraph,
        directory: Path,
        environment: Mapping[str, str],
        cluster: Cluster,
        on_loss: OnLoss,
    ) -> None:
        self.cluster = cluster
        self._graph = graph.model_dump_json()
        self._hang_s = graph.deadlines.hang_s
        self._directory = directory
        self._environment = environment
        self._on_loss = on_loss
        link = graph.placement.link
        self._link = LinkSettings(
            secret=new_secret(), port=link.port, certificate=link.certificate, key=link.key
        )
        self._joints = Joints(Channels(graph, directory, make_connector).addresses)
        self._numbers = itertools.count()
        self._opening: dict[str, asyncio.Task[RunningNode]] = {}
        self._opened: list[RunningNode] = []
        self._meeting = asyncio.Lock()
        self._placed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def on(self, name: str) -> RunningNode:
        """A node with an agent on it, a new one if the last is lost; raises NodeLost."""
        opening = self._opening.get(name)
        if opening is None or (opening.done() and _has_failed(opening)):
            opening = self._opening[name] = asyncio.create_task(self._open(name))
        return await asyncio.shield(opening)

    async def _open(self, name: str) -> RunningNode:
        if name != self.cluster.home:
            await self.on(self.cluster.home)
        unique = f"{name[:12]}-{next(self._numbers)}"
        link = replace(self._link, host=await self.cluster.address_of(name))
        try:
            agent = await self.cluster.agent_on(name)
            node = RunningNode(unique, agent, self._directory, self._hang_s)
            await node.open(self._graph, self._environment, link)
            await self._introduce(node)
        except BaseException:
            self.cluster.drop(name)
            raise
        if name == self.cluster.home:
            self._joints.home = node
        node.lost.add_done_callback(lambda _: self._forget(name, node))
        node.follow(self._note_losses)
        logger.info("node %s takes stages", node.host)
        return node

    async def _introduce(self, node: RunningNode) -> None:
        """Have it and all other nodes know of each other."""
        async with self._meeting:
            for other in self._running:
                await other.ask(other.agent.meet(node.name, node.address, node.port))
                await node.agent.meet(other.name, other.address, other.port)
            self._opened.append(node)

    def _forget(self, name: str, node: RunningNode) -> None:
        self.cluster.drop(name)
        for other in self._running:
            self._begin(other.ask(other.agent.leave(node.name)))

    def _begin(self, asked: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(asked)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_losses(self, node: RunningNode, losses: Sequence[Loss]) -> None:
        for loss in losses:
            peer = next((one for one in self._running if one.name == loss.peer), None)
            if peer is None:
                continue  # it is lost, and its stages with it
            why = f"the link between {node.host} and {peer.host} was lost: {loss.why}"
            logger.error("%s", why)
            if loss.is_silent:
                self._begin(peer.ask(peer.agent.restart_link()))
            for one, other in ((node, peer), (peer, node)):
                if other is self._joints.home:
                    one.unlink(why)
            edges = self._joints.between(node, peer)
            if edges:
                self._on_loss(edges)

    async def place(self, stage: str, node: RunningNode) -> None:
        """Empty a stage's channels if it starts again, and join them to wherever it is now."""
        if stage in self._placed:
            for one in self._running:
                await one.ask(one.agent.renew(stage))
        self._placed.add(stage)
        await self._joints.place(stage, node)

    @property
    def _running(self) -> list[RunningNode]:
        return [node for node in self._opened if not node.is_lost]

    async def close(self) -> None:
        """Leave every node as it was found; an agent that still starts is not waited for."""
        for opening in self._opening.values():
            opening.cancel()  # one that is done stays as it is
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(node.close() for node in self._opened))
        for name in self._opening:
            self.cluster.drop(name)


def _has_failed(opening: asyncio.Task[RunningNode]) -> bool:
    return opening.exception() is not None or opening.result().is_lost
