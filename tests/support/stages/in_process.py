"""A whole graph in this process: the gateway's runtime, and each stage's worker as a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from omnistage.connectors import make_connector
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.worker.stage_worker import StageWorker


class WorkerTask:
    """A stage's worker as a task of this process."""

    def __init__(self, graph: StageGraph, name: str, directory: Path) -> None:
        self._task = asyncio.create_task(StageWorker(graph, name, directory).run())

    async def start(self) -> None:
        """It begins by itself."""

    async def wait(self) -> str:
        """Its end."""
        await asyncio.shield(self._task)
        return "end"

    def kill(self) -> None:
        """Cancel it."""
        self._task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Wait for its end."""
        await asyncio.wait_for(self._task, grace_s)


@asynccontextmanager
async def served(graph: StageGraph, directory: Path) -> AsyncIterator[Runtime]:
    """The graph's runtime, once all its stages have loaded."""

    def launch(name: str, directory: Path) -> WorkerTask:
        return WorkerTask(graph, name, directory)

    async with Runtime(graph, directory, launch, make_connector) as runtime:
        await runtime.fleet.loaded()
        yield runtime
