"""The agent of one node: the run's folders there, the channels' ends, the stages' processes.

It is all that a node needs to know of a run. Nothing here knows how the gateway's calls come.
"""

import asyncio
import importlib.metadata
import logging
import os
import socket
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import make_run_directory, sweep
from omnistage.connectors.tcp.node_link import NodeLink
from omnistage.connectors.tcp.orders import LinkSettings
from omnistage.server.placement.agent import Line, News, Node, NodeHalf
from omnistage.server.placement.janitor import start_janitor
from omnistage.server.placement.own_link import OwnLink
from omnistage.server.runtime.processes.channels import Channels
from omnistage.server.runtime.processes.mps_daemon import end_daemon
from omnistage.server.runtime.processes.process import StageProcess
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import Loading, read_loading

OURS = "omnistage"
GRAPH = "graph.json"
MAX_LINES = 10_000  # that the gateway has not taken; the oldest go first
NEWS_INTERVAL_S = 0.25
NEWS_PATIENCE_S = 2.0


class ProcessAgent:
    """Starts and ends stages' processes, whose parent this one is: they end with it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._stages: dict[str, StageProcess] = {}
        self._starting: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def has_folder(self, path: str) -> bool:
        """Returns whether a folder is there."""
        return await asyncio.to_thread(Path(path).is_dir)

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        """Start a stage's process in the run's folder."""
        own = {**self._environment, **environment}
        async with self._starting[stage]:
            process = StageProcess(stage, self._directory, environment=own)
            await process.start()
            self._stages[stage] = process

    async def wait(self, stage: str) -> str:
        """How it ended, once it has."""
        return await self._stages[stage].wait()

    async def kill(self, stage: str) -> None:
        """End it at once, with everything below it, if it could be started."""
        async with self._starting[stage]:
            if (process := self._stages.get(stage)) is not None:
                process.kill()

    async def stop(self, stage: str, grace_s: float) -> None:
        """End it, if it could be started: it gets `grace_s` to do it by itself."""
        async with self._starting[stage]:
            if (process := self._stages.get(stage)) is not None:
                await process.stop(grace_s)


class LinkedAgent(ProcessAgent):
    """The same, with the link of its node."""

    def _start_link(self, name: str, settings: LinkSettings) -> Node:
        self._link = OwnLink(NodeLink(name, self._directory, settings))
        host, version = socket.gethostname(), importlib.metadata.version(OURS)
        return Node(host, version, self._link.port)

    async def meet(self, peer: str, host: str, port: int) -> None:
        """There is another node, whose link listens there."""
        self._link.meet(peer, host, port)

    async def leave(self, peer: str) -> None:
        """Another node is gone."""
        self._link.leave(peer)

    async def join(self, halves: Sequence[NodeHalf]) -> None:
        """Have these channels go on to other nodes."""
        for half in halves:
            self._link.join(half)

    async def part(self, addresses: Sequence[str]) -> None:
        """Have these channels go on to no other node any more."""
        for address in addresses:
            self._link.part(address)

    async def restart_link(self) -> None:
        """A peer has heard nothing of this node's link."""
        self._link.restart()


class HomeAgent(LinkedAgent):
    """The agent of the node that the gateway is on: folders, channels and log are the gateway's."""

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        """All but the link is there."""
        return self._start_link(name, link)

    async def renew(self, stage: str) -> None:
        """The gateway has done it."""

    async def news(self) -> News:
        """Returns what was lost; the gateway sees the rest by itself."""
        await self._link.wait(NEWS_PATIENCE_S)
        return News(losses=self._link.take())

    async def close(self) -> None:
        """The gateway removes the rest."""
        self._link.close()


class NodeAgent(LinkedAgent):
    """The agent of another node."""

    def __init__(self) -> None:
        """Nothing is made before `open`, which its event loop runs."""

    async def open(
        self, name: str, graph: str, environment: Mapping[str, str], link: LinkSettings
    ) -> Node:
        """Sweep what others left here, then make the run's folders and channels."""
        sweep(before=end_daemon)
        self._run = make_run_directory()
        self._janitor = await asyncio.to_thread(start_janitor, self._run.path)
        super().__init__(self._run.path, environment)
        self._told: dict[str, Loading | None] = {}
        self._lines = LineQueue()
        logging.getLogger(OURS).addHandler(self._lines)
        logging.getLogger(OURS).setLevel(logging.DEBUG)  # the gateway knows which it wants
        self._channels = Channels(
            StageGraph.model_validate_json(graph), self._run.path, make_connector
        )
        self._channels.create()
        (self._run.path / GRAPH).write_text(graph)
        return self._start_link(name, link)

    async def renew(self, stage: str) -> None:
        """Empty the channels that a stage has an end of."""
        self._channels.renew(stage)

    async def news(self) -> News:
        """Returns what is new, once something is, or nothing after a while."""
        deadline = asyncio.get_running_loop().time() + NEWS_PATIENCE_S
        while asyncio.get_running_loop().time() < deadline:
            news = News(self._lines.take(), self._new_loading(), self._link.take())
            if any(news):
                return news
            await self._lines.wait(NEWS_INTERVAL_S)
        return News()

    def _new_loading(self) -> dict[str, Loading | None]:
        now = {stage: read_loading(self._run.path, stage) for stage in self._stages}
        new = {stage: told for stage, told in now.items() if told != self._told.get(stage)}
        self._told = now
        return new

    async def close(self) -> None:
        """End what still runs and remove all that the run has here."""
        await asyncio.gather(*(process.stop(0) for process in self._stages.values()))
        logging.getLogger(OURS).removeHandler(self._lines)
        self._link.close()
        self._channels.destroy()
        self._run.remove()
        os.close(self._janitor)


class LineQueue(logging.Handler):
    """The log of this process, line by line, until somebody takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._loop = asyncio.get_running_loop()
        self._has_some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        stage = getattr(record, "stage", "")
        self._lines.append(Line(stage, record.levelno, record.getMessage()))
        self._loop.call_soon_threadsafe(self._has_some.set)

    def take(self) -> Sequence[Line]:
        """Take out the lines that nobody has read yet."""
        self._has_some.clear()
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    async def wait(self, timeout_s: float) -> None:
        """Return when there is a line, at the latest after the time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_some.wait(), timeout_s)
