"""The one stage of the graph that is picked for a folder, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver, Sender
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import pick_graph
from omnistage.stages.messages.to_gateway import TO_GATEWAY, Marks, Ready, ToGateway
from omnistage.stages.worker.stage import Opened, StagePorts


@dataclass(frozen=True)
class PickedStage:
    """A stage that is ready, its end of the channel to the gateway, and the gateway's."""

    kind: str
    stage: Any
    ready: Ready
    near: Sender
    far: Receiver[ToGateway]

    async def served(self, opened: Opened) -> list[Chunk[ToGateway]]:
        """Serve one request, beside which there is no other; all that comes of it but marks.

        A cancel is the stage's, too, and has ended there then.
        """
        came: list[Chunk[ToGateway]] = []
        serving = asyncio.create_task(self.stage.serve(opened))
        try:
            async with asyncio.timeout(600):
                while not (serving.done() and ((came and came[-1].last) or serving.exception())):
                    while (chunk := self.far.receive()) is not None:
                        self.far.grant(chunk.request_id)
                        if chunk.request_id == opened.id:  # not of one that was cancelled before
                            came.append(chunk)
                    await asyncio.sleep(0.005)
        finally:
            serving.cancel()
            await asyncio.wait([serving])
        serving.result()
        return [chunk for chunk in came if not isinstance(chunk.message, Marks)]


@asynccontextmanager
async def picked_stage(
    folder: Path,
    name: str,
    run: Path,
    engine: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[PickedStage]:
    """Start the stage of this name, made by its kind, with more arguments and options."""
    spec = load_graph(pick_graph(str(folder), 0).file, str(folder)).stages[name]
    module, _, class_name = KINDS[spec.kind].path.partition(":")
    address = f"{name}.gateway"
    connector = make_connector("shm", run, {})
    connector.create(address)
    near, far = connector.sender(address), connector.receiver(address, TO_GATEWAY)
    options = {**spec.options, **(options or {})}
    ports = StagePorts(spec.name, str(folder), {**spec.engine, **engine}, options, near)
    asyncio.get_running_loop().add_reader(near.fileno(), ports.room.flush)
    stage = getattr(import_module(module), class_name)(ports)
    ready = await stage.start()
    yield PickedStage(spec.kind, stage, ready, near, far)
    await stage.close()
    asyncio.get_running_loop().remove_reader(near.fileno())
    near.close()
    far.close()
    connector.destroy(address)
