"""The agent of one node: the run's folders there, the channels' ends, the stages' processes.

It is all that a node needs to know of a run; the gateway calls it. Nothing here knows how the
calls come.
"""

import asyncio
import importlib.metadata
import logging
import os
import socket
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import make_run_directory, sweep
from omnistage.server.placement.janitor import start_janitor
from omnistage.server.runtime.channels import Channels
from omnistage.server.runtime.mps_daemon import end_daemon
from omnistage.server.runtime.process import StageProcess
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.loading import Loading, read_loading

logger = logging.getLogger(__name__)

OURS = "omnistage"
GRAPH = "graph.json"
MAX_LINES = 10_000  # that the gateway has not taken; the oldest go first
NEWS_INTERVAL_S = 0.25
NEWS_PATIENCE_S = 2.0


class Line(NamedTuple):
    """A line of a node's log: of a stage, or of the agent itself."""

    stage: str
    level: int
    text: str


class News(NamedTuple):
    """What a node has to tell: lines, and how far the stages are that load there."""

    lines: Sequence[Line]
    loading: Mapping[str, Loading | None]


class Node(NamedTuple):
    """A node as its agent sees it."""

    host: str
    version: str  # of this package


class Agent(Protocol):
    """What the gateway asks of a node."""

    async def open(self, graph: str, environment: Mapping[str, str]) -> Node:
        """Make the run's folders and channels; `environment` is for every stage."""

    async def has_folder(self, path: str) -> bool:
        """Whether a folder is there."""

    async def start(self, stage: str, environment: Mapping[str, str]) -> None:
        """Start a stage's process."""

    async def wait(self, stage: str) -> str:
        """How it ended, once it has."""

    async def kill(self, stage: str) -> None:
        """End it at once, with everything below it."""

    async def stop(self, stage: str, grace_s: float) -> None:
        """End it: it gets `grace_s` to do it by itself."""

    async def renew(self, stage: str) -> None:
        """Empty the channels that a stage has an end of: it starts again, here or elsewhere."""

    async def news(self) -> News:
        """What is new, once something is, or nothing after a while."""

    async def close(self) -> None:
        """End what still runs and remove all that the run has here."""


class ProcessAgent:
    """Starts and ends stages' processes, whose parent this one is: they end with it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._stages: dict[str, StageProcess] = {}
        self._starting: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def has_folder(self, path: str) -> bool:
        """Whether a folder is there."""
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
        """End it at once, with everything below it."""
        async with self._starting[stage]:
            self._stages[stage].kill()

    async def stop(self, stage: str, grace_s: float) -> None:
        """End it: it gets `grace_s` to do it by itself."""
        async with self._starting[stage]:
            await self._stages[stage].stop(grace_s)


class HomeAgent(ProcessAgent):
    """The agent of the node that the gateway is on: folders, channels and log are the gateway's."""

    async def open(self, graph: str, environment: Mapping[str, str]) -> Node:
        """All is there."""
        return this_node()

    async def renew(self, stage: str) -> None:
        """The gateway has done it."""

    async def news(self) -> News:
        """There never is any: the gateway sees it by itself."""
        await asyncio.Event().wait()
        return News((), {})

    async def close(self) -> None:
        """The gateway removes what is its own."""


class NodeAgent(ProcessAgent):
    """The agent of another node."""

    def __init__(self) -> None:
        """Nothing is made before `open`, which its event loop runs."""

    async def open(self, graph: str, environment: Mapping[str, str]) -> Node:
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
        return this_node()

    async def renew(self, stage: str) -> None:
        """Empty the channels that a stage has an end of."""
        self._channels.renew(stage)

    async def news(self) -> News:
        """What is new, once something is, or nothing after a while."""
        deadline = asyncio.get_running_loop().time() + NEWS_PATIENCE_S
        while asyncio.get_running_loop().time() < deadline:
            news = News(self._lines.take(), self._new_loading())
            if any(news):
                return news
            await self._lines.wait(NEWS_INTERVAL_S)
        return News((), {})

    def _new_loading(self) -> dict[str, Loading | None]:
        now = {stage: read_loading(self._run.path, stage) for stage in self._stages}
        new = {stage: told for stage, told in now.items() if told != self._told.get(stage)}
        self._told = now
        return new

    async def close(self) -> None:
        """End what still runs and remove all that the run has here."""
        await asyncio.gather(*(process.stop(0) for process in self._stages.values()))
        logging.getLogger(OURS).removeHandler(self._lines)
        self._channels.destroy()
        self._run.remove()
        os.close(self._janitor)


def this_node() -> Node:
    """The machine that this process is on."""
    return Node(socket.gethostname(), importlib.metadata.version(OURS))


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
        """All that are there."""
        self._has_some.clear()
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    async def wait(self, timeout_s: float) -> None:
        """Return when there is a line, at the latest after the time."""
        try:
            await asyncio.wait_for(self._has_some.wait(), timeout_s)
        except TimeoutError:
            return
