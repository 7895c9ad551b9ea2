"""A thinker's stage in the test's own process, with the ends of its edge to a talker."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.stages.heard import Heard
from support.stages.text_stage import ENGINE as TEXT_ENGINE

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.server.runtime.processes.channels import Channels
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stages.messages.edge import EDGE, Edge
from omnistage.stages.messages.to_gateway import TO_GATEWAY, TextDelta, ToGateway
from omnistage.stages.worker.stage_worker import StageWorker

ENGINE: dict[str, Any] = {
    **TEXT_ENGINE,  # long prompts are read in parts
    "kv_cache_memory_bytes": 64 << 20,
    "limit_mm_per_prompt": {"image": 2, "audio": 1, "video": 1},
}


class ThinkerHarness(Heard):
    """A thinker stage that exports every hidden state, and the gateway's end of its channel."""

    def __init__(
        self, stage: Any, ports: Any, edge: list[Receiver[Edge]], outputs: Receiver[ToGateway]
    ) -> None:
        super().__init__()
        self.stage = stage
        self.ports = ports
        self.opens, self.feed, self.rows = edge
        self.outputs = outputs
        loop = asyncio.get_running_loop()
        loop.add_reader(ports.outputs.fileno(), ports.room.flush)
        loop.add_reader(outputs.fileno(), self.hear, outputs)

    def token_ids(self, name: str) -> list[int]:
        """Of the text that has come."""
        told = (chunk.message for chunk in self.got[name])
        chunks = [message.chunk for message in told if isinstance(message, TextDelta)]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return [token for choice in choices for token in choice.get("token_ids") or ()]

    @property
    def num_unfinished(self) -> int:
        """Requests that the engine's front still has."""
        num: int = self.stage._engine.output_processor.get_num_unfinished_requests()
        return num

    def close(self) -> None:
        """Read no more."""
        loop = asyncio.get_running_loop()
        for end in (self.ports.outputs, self.outputs):
            loop.remove_reader(end.fileno())
        self.outputs.close()


@asynccontextmanager
async def running_thinker(
    graph_text: str, folder: Path, run: Path, engine: Mapping[str, Any]
) -> AsyncIterator[ThinkerHarness]:
    """The stage `thinker` of a graph, whose edge goes to `talker`, with these engine arguments."""
    file = run / "graph.yaml"
    file.write_text(graph_text)
    graph = load_graph(file, str(folder))
    graph = graph.with_engine(graph.stages["thinker"].kind, **engine)
    channels = Channels(graph, run, make_connector)
    channels.create()
    worker = StageWorker(graph, "thinker", run)
    stage, ports = worker._stage, worker._ports
    await stage.start()
    connector = make_connector("shm", run, {})
    edge = [connector.receiver(f"thinker.talker.{end}", EDGE) for end in ("open", "feed", "rows")]
    outputs = connector.receiver("thinker.gateway", TO_GATEWAY)
    harness = ThinkerHarness(stage, ports, edge, outputs)
    yield harness
    await stage.close()
    harness.close()
    for end in edge:
        end.close()
    worker._wiring.close()
    worker._reports.close()
    channels.destroy()


async def rows_of(thinker: Any, *names: str) -> dict[str, list[Chunk[Edge]]]:
    """All chunks with rows until each of these requests has had its last; of others too."""
    found: dict[str, list[Chunk[Edge]]] = defaultdict(list)
    async with asyncio.timeout(600):
        while not all(found[name] and found[name][-1].last for name in names):
            chunk = thinker.rows.receive()
            if chunk is None:
                await asyncio.sleep(0.005)
                continue
            thinker.rows.grant(chunk.request_id)
            found[chunk.request_id].append(chunk)
    return found


def positions_of(chunks: list[Chunk[Edge]]) -> list[int]:
    """In the order in which they came."""
    parts = [chunk.tensors["positions"].numpy() for chunk in chunks if chunk.tensors]
    return [int(position) for part in parts for position in part]


def taken(receiver: Receiver[Edge], name: str) -> list[Chunk[Edge]]:
    """All chunks of a request that have come along a channel."""
    chunks = []
    while (chunk := receiver.receive()) is not None:
        receiver.grant(chunk.request_id)
        if chunk.request_id == name:
            chunks.append(chunk)
    return chunks
