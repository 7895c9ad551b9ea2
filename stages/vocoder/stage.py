"""The stage of a streaming decoder: frames of all requests in, PCM out, one batch after another."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.device.compiling import count_compiles
from omnistage.stages.device.profiler import NO_FOLDER, PROFILE, Profiler
from omnistage.stages.messages.edge import Codes, Edge, Lead, Open
from omnistage.stages.messages.to_gateway import Ready, Sound
from omnistage.stages.vocoder.control import COMMANDS, DecoderControl, DecoderWeights
from omnistage.stages.vocoder.decoder import Frames
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.streams import DecodedAudio, DecodeFailed
from omnistage.stages.worker.failure import RequestError, out_of_memory
from omnistage.stages.worker.requests.watch import Watch, overdue
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)

Answer = JsonMap


class DecoderStage(ABC):
    """Steps an engine in a thread and hands each request its samples.

    A family's stage says which engine, in `load`, and if it takes commands how its weights are
    read again, in `weights`.
    """

    @abstractmethod
    def load(self, ports: StagePorts) -> DecoderEngine[Any]:
        """The family's decoder, in an engine."""

    def weights(self, ports: StagePorts) -> DecoderWeights[Any, Any] | None:
        """How those of the family's decoder are read again; None: it takes no commands."""
        return None

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._done: dict[str, asyncio.Event] = {}
        self._wants_codes: dict[str, bool] = {}
        self._num_frames: dict[str, int] = {}
        self._from: dict[str, Receiver[Edge]] = {}
        self._work = asyncio.Event()
        self._watches: dict[str, Watch] = {}
        self._failed: dict[str, RequestError] = {}
        self._held: dict[str, asyncio.Task[None]] = {}
        self._stepping = asyncio.Lock()
        self._control: DecoderControl[Any, Any] | None = None
        # One thread for all steps: a profile has the operators of the thread that began it.
        self._thread = ThreadPoolExecutor(1, "decoder")
        self._profiler: Profiler | None = None
        if folder := ports.engine.get("profile_folder"):
            self._profiler = Profiler(Path(folder), ports.name)

    async def start(self) -> Ready:
        """Load, and decode one frame."""
        count_compiles()
        self._engine = self.load(self._ports)
        self._engine.warm_up()
        weights = self.weights(self._ports)
        if weights is not None:
            self._control = DecoderControl(self._engine, weights)
        self._loop_task = asyncio.create_task(self._loop())
        decoder = self._engine.decoder
        return Ready(
            sample_rate_hz=decoder.sample_rate_hz,
            num_channels=decoder.num_channels,
            commands={
                **dict.fromkeys(() if weights is None else COMMANDS, ""),
                **dict.fromkeys(PROFILE, "" if self._profiler else NO_FOLDER),
            },
        )

    async def serve(self, opened: Opened) -> None:
        """Wait until every sample of the request has left."""
        request_id = opened.id
        self._engine.open(request_id, _lead_of(opened), opened.request)
        self._work.set()  # a lead is decoded while its request's own frames are made
        done = self._done[request_id] = asyncio.Event()
        self._wants_codes[request_id] = opened.request.return_codes
        self._num_frames[request_id] = 0
        try:
            await self._wait(request_id, done)
            if request_id in self._failed:
                raise self._failed[request_id]
        finally:
            self._failed.pop(request_id, None)
            self._engine.cancel(request_id)
            self._work.set()  # its slot may be what another one waits for
            held = self._held.pop(request_id, None)
            if held is not None:
                held.cancel()
            for known in (
                self._done,
                self._wants_codes,
                self._num_frames,
                self._from,
                self._watches,
            ):
                known.pop(request_id, None)

    async def _wait(self, request_id: str, done: asyncio.Event) -> None:
        """Until the last sample; RequestError when the next frames do not come."""
        watch = self._watches[request_id] = self._ports.watch()
        while not await watch.sees(done):
            if self._engine.is_idle(request_id):
                raise overdue(self._ports.source, self._ports.name)
            watch.restart()  # it waits for us

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """Frames of one request [n, …], or none of them."""
        if chunk.request_id not in self._done:
            asyncio.get_running_loop().call_soon(self._receive_opened, receiver, chunk)
            return
        self._receive_opened(receiver, chunk)

    def _receive_opened(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        if not isinstance(chunk.message, Codes) or chunk.request_id not in self._done:
            receiver.forget(chunk.request_id)
            return
        frames = chunk.tensors["codes"].numpy() if "codes" in chunk.tensors else None
        self._ports.mark(chunk.request_id, "first_frames")
        self._from[chunk.request_id] = receiver
        self._watches[chunk.request_id].restart()
        self._engine.push(chunk.request_id, frames, chunk.last)
        self._work.set()

    def nothing_to_say(self, request_id: str, source: str) -> None:
        """Nothing will be spoken: one empty last output."""
        done = self._done.get(request_id)
        if done is not None and not done.is_set():
            self._ports.send_output(request_id, Sound(), last=True)
            done.set()

    def upstream_waits(self, request_id: str, source: str) -> None:
        """Upstream waits for its client: it is not overdue."""
        if request_id in self._watches:
            self._watches[request_id].restart()

    async def _loop(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while answers := await self._step():
                for answer in answers:
                    self._answer(answer)

    def _answer(self, answer: DecodedAudio | DecodeFailed) -> None:
        """Whatever is wrong with one answer fails its request only."""
        if isinstance(answer, DecodeFailed):
            self._fail(answer.request_id, answer.is_out_of_memory)
            return
        try:
            self._send(answer)
        except Exception:
            logger.exception("sound of request %s could not be sent", answer.request_id)
            self._fail(answer.request_id)

    def _fail(self, request_id: str, is_out_of_memory: bool = False) -> None:
        self._engine.cancel(request_id)
        done = self._done.get(request_id)
        if done is None:
            return
        stage = self._ports.name
        error = RequestError(500, f"Stage {stage} failed; its log says why.")
        self._failed[request_id] = out_of_memory(stage) if is_out_of_memory else error
        done.set()

    async def _step(self) -> list[DecodedAudio | DecodeFailed]:
        async with self._stepping:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._engine.step)

    def _send(self, answer: DecodedAudio) -> None:
        request_id, pcm, frames, last = answer
        done = self._done.get(request_id)
        if done is None or done.is_set():
            return
        receiver = self._from.get(request_id)
        if receiver is not None:
            receiver.grant(request_id)
            self._watches[request_id].restart()  # what may come has only now been asked for
        self._num_frames[request_id] += len(frames)
        tensors = {"pcm": Tensor.from_numpy(pcm)}
        if len(pcm):
            self._ports.mark(request_id, "first_samples")
        if self._wants_codes[request_id]:
            tensors["codes"] = Tensor.from_numpy(frames)
        sound = Sound(self._num_frames[request_id] if last else 0)
        self._ports.send_output(request_id, sound, tensors, last)
        if last:
            done.set()
        elif request_id not in self._held and not self._ports.room.is_free(request_id):
            self._engine.hold(request_id, True)
            self._held[request_id] = asyncio.create_task(self._hold(request_id))

    async def _hold(self, request_id: str) -> None:
        """Until the gateway takes more; our upstream has no credit for more meanwhile."""
        await self._ports.room.wait(request_id)
        del self._held[request_id]
        self._engine.hold(request_id, False)
        self._work.set()

    async def control(self, command: str, arguments: JsonMap) -> Answer:
        """Sleep, weights and profiles, between two steps."""
        obey = self._obeying(command, arguments)
        async with self._stepping:
            return await asyncio.get_running_loop().run_in_executor(self._thread, obey)

    def _obeying(self, command: str, arguments: JsonMap) -> Callable[[], Answer]:
        if command in PROFILE:
            if self._profiler is None:
                raise RequestError(400, f"Stage {self._ports.name}: {NO_FOLDER}.")
            run = self._profiler.start if command == "start_profile" else self._profiler.stop
            return partial(run, **arguments)
        if self._control is None:
            raise RequestError(
                400, f"Stage {self._ports.name} does not know the command {command}."
            )
        return partial(self._control.obey, command, arguments)

    @property
    def metrics(self) -> Collector:
        """Returns the metrics of decodes."""
        return self._engine.metrics.registry

    async def alive(self) -> None:
        """Waits for the step that runs; raises what has ended the loop, if anything has."""
        if self._loop_task.done():
            self._loop_task.result()
        async with self._stepping:
            return

    async def close(self) -> None:
        """Stop the loop."""
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)
        self._thread.shutdown(wait=False)


def _lead_of(opened: Opened) -> Frames | None:
    """The frames that upstream wants decoded ahead of the request's own, if it sent any."""
    if "lead" not in opened.tensors:
        return None
    assert isinstance(opened.message, Open)
    lead: Frames = opened.tensors["lead"].numpy()
    num_told = opened.message.read(Lead).num_frames
    if len(lead) != num_told:
        raise ValueError(f"a lead of {len(lead)} frames, but {num_told} were told")
    return lead
