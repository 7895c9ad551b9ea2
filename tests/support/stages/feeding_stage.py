"""A stage that gives a pipeline arguments, in the test's own process, with its edge's far ends."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from omnistage.connectors import make_connector
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.kinds import Payload, payloads
from omnistage.stages.messages.edge import EDGE, Edge
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream, StagePorts


@asynccontextmanager
async def feeding_stage(
    make: Callable[[StagePorts], Any],
    name: str,
    model: Path,
    folder: Path,
    options: Mapping[str, Any],
    channel: str,
) -> AsyncIterator[tuple[Any, Receiver[Edge], Receiver[Edge]]]:
    """A stage before `dit`, and what it opens and sends by a channel: `feed` or `rows`."""
    connector = make_connector("shm", folder, {})
    edge = {end: f"{name}.dit.{end}" for end in ("open", "feed", "rows")}
    addresses = (f"{name}.gateway", *edge.values())
    for address in addresses:
        connector.create(address)
    outputs, opens, feed = (connector.sender(address) for address in addresses[:3])
    port = Port(edge["rows"], "shm", str(folder), {})
    downstream = Downstream("dit", payloads(Payload.ARGUMENTS), opens, feed, port, [1])
    stage = make(StagePorts(name, str(model), dict(options), {}, outputs, [downstream]))
    await stage.start()
    ends = connector.receiver(edge["open"], EDGE), connector.receiver(edge[channel], EDGE)
    yield stage, *ends
    await stage.close()
    for end in (outputs, opens, feed, *ends):
        end.close()
    for address in addresses:
        connector.destroy(address)
