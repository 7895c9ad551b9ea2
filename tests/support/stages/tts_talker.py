"""A Qwen3-TTS talker with its engine, without a server: requests in, codec frames out."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from references.qwen3_tts_talks import MAX_FRAMES, Talk, sound_of
from support.api.bodies import spoken_of

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.kinds import Payload
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.messages.edge import EDGE, NothingToSay, Open
from omnistage.stages.messages.to_gateway import TO_GATEWAY, InputTokens
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.ports import Port
from omnistage.stages.worker.stage import Downstream, Opened, StagePorts

GREEDY = {"temperature": 0, "max_tokens": MAX_FRAMES}
PATH = ["talker", "code2wav"]
CHANNELS = ("outputs", "open", "edge_feed", "codes", "feed")

Codes = npt.NDArray[np.int32]


def opened(name: str, body: Mapping[str, Any], **more: Any) -> Opened:
    """A request as the stage gets it."""
    sound, path = more.pop("sound", None), more.pop("path", PATH)
    tensors = {} if sound is None else {"reference": Tensor.from_numpy(sound)}
    return Opened(name, Request(spoken_of(body), ["audio"], path, **more), tensors)


def asked(name: str, talk: Talk, **more: Any) -> Opened:
    """What the gateway makes of a talk."""
    body: dict[str, Any] = {"input": talk.text, "language": talk.language}
    body["instructions"] = talk.instructions
    sound = None
    if talk.sound_length:
        sound = sound_of(talk)
        body["reference"] = {"key": str(talk.sound_length), "text": talk.sound_text}
    params = {"talker": more.pop("sampling", GREEDY)}
    return opened(
        name,
        {**body, **more.pop("body", {})},
        speaker=talk.speaker,
        sound=sound,
        stage_params=params,
        **more,
    )


class TalkerHarness:
    """The stage, and what it says to the gateway and downstream."""

    def __init__(self, stage: Any, receivers: Mapping[str, Receiver[Any]]) -> None:
        self.stage = stage
        self._receivers = receivers
        self._names = count()
        self.listening: asyncio.Task[None] | None = None
        self._frames: dict[str, list[Codes]] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self.opens: dict[str, Chunk[Any]] = {}
        self.num_tokens: dict[str, int] = {}

    def lay_text(self, is_whole: bool) -> None:
        """As the stage's option `text` says it."""
        self.stage._options = replace(self.stage._options, text="whole" if is_whole else "streamed")

    def name(self) -> str:
        """Of a new request."""
        return f"request-{next(self._names)}"

    async def codes(self, request: Opened) -> Codes:
        """All frames of one request."""
        self._frames[request.id], self._ended[request.id] = [], asyncio.Event()
        await self.stage.serve(request)
        await self._end_of(request.id)
        frames = self._frames.pop(request.id)
        return np.concatenate(frames) if frames else np.zeros((0, 0), np.int32)

    async def _end_of(self, request_id: str) -> None:
        """Wait for its last frame; raise what has ended the listening."""
        assert self.listening is not None
        ending = asyncio.create_task(self._ended[request_id].wait())
        await asyncio.wait({ending, self.listening}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            ending.cancel()
            self.listening.result()

    async def talk(self, talk: Talk, **more: Any) -> Codes:
        """All frames of a talk."""
        return await self.codes(asked(self.name(), talk, **more))

    async def listen(self) -> None:
        """Take what the stage and its engine send, for ever."""
        while True:
            for name, receiver in self._receivers.items():
                while (chunk := receiver.receive()) is not None:
                    receiver.grant(chunk.request_id)
                    self._take(name, chunk)
            await asyncio.sleep(0.002)

    def _take(self, name: str, chunk: Chunk[Any]) -> None:
        if name == "outputs" and isinstance(chunk.message, InputTokens):
            self.num_tokens[chunk.request_id] = chunk.message.num_tokens
        elif name == "open" and isinstance(chunk.message, Open):
            self.opens[chunk.request_id] = chunk
        elif name == "open" and isinstance(chunk.message, NothingToSay):
            self._ended[chunk.request_id].set()
        elif name == "codes":
            if "codes" in chunk.tensors:
                self._frames[chunk.request_id].append(chunk.tensors["codes"].numpy().copy())
            if chunk.last:
                self._ended[chunk.request_id].set()


def talker_ports(
    folder: Path,
    run: Path,
    options: Sequence[tuple[str, Any]] = (),
    file: str = "qwen3_tts_tiny.yaml",
) -> StagePorts:
    """The talker's place in a family's tiny graph; its channels are below `run`."""
    graph = load_graph(GRAPHS / file, "tiny")
    connector = make_connector("shm", run, {"credit": 0})
    for name in CHANNELS:
        connector.create(name)
    (decoder,) = (edge.target for edge in graph.edges)
    edge = Downstream(
        decoder,
        frozenset({Payload.CODES}),
        connector.sender("open"),
        connector.sender("edge_feed"),
        Port("codes", "shm", str(run), {"credit": 0}),
        [2, 4, 8],
    )
    return StagePorts(
        "talker",
        str(folder),
        dict(graph.stages["talker"].engine),
        dict(options),
        connector.sender("outputs"),
        [edge],
        feeds=[Port("feed", "shm", str(run), {"credit": 0})],
        own_feed=connector.sender("feed"),
    )


def close_ports(ports: StagePorts, run: Path) -> None:
    """All of its ends, and the channels."""
    edge = ports.downstream[0]
    for sender in (ports.outputs, edge.open, edge.feed, ports.own_feed):
        if sender is not None:
            sender.close()
    connector = make_connector("shm", run, {})
    for name in CHANNELS:
        connector.destroy(name)


@asynccontextmanager
async def running_talker(
    folder: Path, run: Path, family: str = "qwen3_tts"
) -> AsyncIterator[TalkerHarness]:
    """One that has started."""
    ports = talker_ports(folder, run, file=f"{family}_tiny.yaml")
    connector = make_connector("shm", run, {"credit": 0})
    messages: dict[str, Any] = {"outputs": TO_GATEWAY, "open": EDGE, "codes": EDGE}
    receivers = {name: connector.receiver(name, known) for name, known in messages.items()}
    stage = resolve_name(f"omnistage.stages.{family}.talker:Talker")(ports)
    await stage.start()
    harness = TalkerHarness(stage, receivers)
    listening = harness.listening = asyncio.create_task(harness.listen())
    try:
        yield harness
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await stage.close()
        for receiver in receivers.values():
            receiver.close()
        close_ports(ports, run)
