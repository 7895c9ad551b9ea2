"""The diffusion stage: any Diffusers pipeline, unmodified, its steps batched across requests."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import torch
from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.device.compiling import count_compiles
from omnistage.stages.diffusion.assembly import StageOptions, assemble
from omnistage.stages.diffusion.control.metrics import DiffusionMetrics
from omnistage.stages.diffusion.engine.job import awaited
from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.diffusion.ranks.fit import check_ranks
from omnistage.stages.diffusion.ranks.ranks import Ranks
from omnistage.stages.diffusion.request.arguments import call_arguments, frame_rate, num_pictures
from omnistage.stages.diffusion.request.controls import control_arguments
from omnistage.stages.diffusion.request.extra import failure_of, spread_texts
from omnistage.stages.diffusion.request.media import fitted, media_arguments, media_of, reading_of
from omnistage.stages.diffusion.request.outputs import pictures_of, thoughts_of
from omnistage.stages.diffusion.request.previews import ON_STEP, Previews, num_steps
from omnistage.stages.diffusion.request.sound import audio_of, sound_of
from omnistage.stages.diffusion.request.tasks import arguments_of, makes_alpha
from omnistage.stages.diffusion.request.told import Told
from omnistage.stages.diffusion.request.upstream.coming_arguments import Upstream
from omnistage.stages.diffusion.request.upstream.prompt_text import PromptTexts
from omnistage.stages.diffusion.request.videos import check_kind
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.edge import Edge, Open
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.worker.failure import RequestError, out_of_memory
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """Holds what a pipeline made, and what its answer needs of the request, without arguments."""

    made: Any
    body: JsonMap
    rate: float  # frames per second; 0 where the pipeline is not told


class DiffusionStage:
    """Loads a pipeline and runs requests in it.

    A stage upstream gives arguments of the call, and the pipeline is loaded without the components
    that made them, or it writes the prompts.
    """

    def __init__(self, ports: StagePorts) -> None:
        self._ports = ports
        self._options = StageOptions.of(ports.engine)
        self._ranks: Ranks | None = None
        self._upstream = Upstream(ports) if Payload.ARGUMENTS in ports.takes else None
        self._texts = PromptTexts(ports) if Payload.TEXT in ports.takes else None

    async def start(self) -> Ready:
        """Load, and make two pictures. Other ranks, if there are any, load at the same time."""
        count_compiles()
        model, name, options = self._ports.model, self._ports.name, self._options
        if options.ranks.is_used:
            await asyncio.to_thread(check_ranks, model, options.load, options.ranks)
            self._ranks = Ranks(model, name, self._ports.engine)  # they end with this thread
        given = None if self._upstream is None else self._upstream.given
        made = await asyncio.to_thread(assemble, model, name, options, given, self._ranks)
        self._made = made
        self._metrics = DiffusionMetrics(made.engine, made.control.embeddings)
        bound = options.bound.bound(made.tasks, made.engine.learned.speed, self._ports.deadlines)
        return Ready(
            sample_rate_hz=made.rate_hz,
            commands=made.control.commands,
            work=options.defaults.applied(bound),
            reading=reading_of(made.tasks),
        )

    async def serve(self, opened: Opened) -> None:
        """Make the images of one request; each step is told.

        Memory of keys and values is for others before the images are sent: a client that reads
        slowly holds none.
        """
        told = Told(self._ports, opened.id, self._made.kind)
        try:
            try:
                result = await self._make(opened, told)
            finally:
                if self._upstream is not None:
                    self._upstream.release(opened.id)
            if result is None:
                told.nothing()
            else:
                await self._tell(told, result)
        finally:
            told.close()

    async def _make(self, opened: Opened, told: Told) -> "Result | None":
        """Returns what the pipeline made; None: the stage upstream wants nothing of it."""
        loop = asyncio.get_running_loop()
        to_come = self._to_come(opened)
        body = None if to_come.is_nothing else await self._body(opened)
        if body is None:
            return None
        check_kind(opened.request.outputs, self._made.kind)
        extra = body.get("extra") or {}
        task, media = self._made.tasks.choose(media_of(opened), self._made.kind, extra)
        pipeline = task.pipeline
        if body.get("background") == "transparent" and not makes_alpha(pipeline):
            message = "This model's pictures have no alpha channel."
            raise RequestError(400, message, param="background", code="unsupported_parameter")
        media, body = fitted(task, media, body)
        keeps_size = "image" in media and self._made.kind == "image"
        body = self._options.defaults.completed(body, has_image=keeps_size)
        fields = {name: value for name, value in body.items() if name not in to_come.names}
        arguments = call_arguments(pipeline, fields, opened.request.seed) | to_come.values
        arguments |= media_arguments(task, media, arguments) | control_arguments(pipeline, body)
        arguments |= self._options.extra.arguments(pipeline, extra)
        arguments = spread_texts(arguments) | await self._given(opened.id, to_come)
        previews = None
        if body.get("partial_images"):
            previews = Previews(
                pipeline,
                self._made.loaded.parts.dit,
                arguments,
                body["partial_images"],
                self._made.profile.before_steps,
            )
            pipeline = previews.pipeline

        times = self._metrics.begin()

        def report(step: int, num_steps: int) -> None:
            times.step()
            loop.call_soon_threadsafe(told.step, step, num_steps)

        def on_step(
            running: Pipeline, step: int, time: object, tensors: dict[str, torch.Tensor]
        ) -> dict[str, torch.Tensor]:
            report(step + 1, num_steps(running))
            if previews is not None:
                made = previews.after_step(running, step, tensors["latents"])
                shown = made.images if made is not None else ()
                for picture in pictures_of(shown, len(shown))[:1]:
                    loop.call_soon_threadsafe(told.preview, picture)
            return tensors

        reports = ON_STEP in arguments_of(pipeline)
        if reports:
            arguments = {**arguments, ON_STEP: on_step}

        def on_wait() -> None:
            if told.is_quiet:
                loop.call_soon_threadsafe(told.wait)

        job = self._made.control.submit(body, pipeline, None if reports else report, **arguments)
        job.on_wait = on_wait
        try:
            result = await awaited(job.result)
        except asyncio.CancelledError:
            self._made.engine.cancel(job)
            raise
        except torch.OutOfMemoryError as error:
            logger.error("request %s: %s", opened.id, error)
            raise out_of_memory(self._ports.name) from None
        except Exception as error:  # noqa: BLE001 - it goes on, or is the request's own
            raise failure_of(error, extra) or error from None
        times.finish(num_pictures(body))
        return Result(result, body, frame_rate(pipeline, arguments))

    async def _tell(self, told: Told, result: "Result") -> None:
        made, body = result.made, result.body
        if self._made.kind == "audio":
            await told.finish_sound(await asyncio.to_thread(audio_of, made))
            return
        text_tokens = self._made.tokens.count(body["prompt"], body.get("negative_prompt"))
        number = num_pictures(body)
        pictures = await asyncio.to_thread(pictures_of, made, number)
        is_heard = self._made.rate_hz is not None and body.get("audio") is not False
        sound = await asyncio.to_thread(sound_of, made) if is_heard else None
        num_layers = len(pictures) // number if self._made.kind == "image" else 1
        await told.finish(
            pictures,
            text_tokens,
            result.rate,
            self._made.profile.token_side,
            sound,
            num_layers,
            thoughts_of(made, len(pictures)),
        )

    async def _body(self, opened: Opened) -> JsonMap | None:
        """Returns what is wanted, with the text that the stage upstream writes; None: it wrote
        nothing.
        """
        if self._texts is None:
            return opened.request.fields
        text = await self._texts.whole(opened.id)
        self._ports.mark(opened.id, "prompted")
        return {**opened.request.fields, "prompt": text} if text else None

    def _to_come(self, opened: Opened) -> ArgumentsToCome:
        """Returns what the stage upstream announces of the call's arguments."""
        if self._upstream is None or not isinstance(opened.message, Open):
            return ArgumentsToCome()
        return opened.message.read(ArgumentsToCome)

    async def _given(self, request_id: str, to_come: ArgumentsToCome) -> dict[str, Any]:
        """Returns what the stage upstream gives to the call."""
        if self._upstream is None:
            return {}
        device = self._made.loaded.device
        coming = await self._upstream.all_of(request_id, to_come, device)
        self._ports.mark(request_id, "embedded")
        return coming.arguments(device, self._made.loaded.dtype)

    def receive(self, receiver: Receiver[Edge], chunk: Chunk[Edge]) -> None:
        """A part of the call's arguments, or words of its prompt."""
        if self._upstream is not None:
            self._upstream.receive(receiver, chunk)
        elif self._texts is not None:
            self._texts.receive(receiver, chunk)

    def nothing_to_say(self, request_id: str, source: str) -> None:
        """The text is complete; what is announced as its last piece says so too."""

    def upstream_waits(self, request_id: str, source: str) -> None:
        """Upstream waits for its client: it is not overdue."""
        if self._texts is not None:
            self._texts.wait_on(request_id)

    async def control(self, command: str, arguments: JsonMap) -> JsonMap:
        """Adapters, caches, weights, profiles."""
        return await self._made.control.obey(command, arguments)

    @property
    def metrics(self) -> Collector:
        """Returns the metrics of requests, batches and the embedding cache."""
        return self._metrics

    @property
    def progress(self) -> int | None:
        """How many modules and steps were computed; None: none is."""
        return self._made.engine.progress

    async def alive(self) -> None:
        """A question that only the engine's thread can answer."""
        await awaited(self._made.engine.ping())

    async def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        self._made.control.close()
        await asyncio.to_thread(self._made.engine.close)
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)
        if self._upstream is not None:
            self._upstream.close()
