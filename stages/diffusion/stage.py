"""The diffusion stage: any Diffusers pipeline, unmodified, its steps batched across requests."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

import torch
from prometheus_client.registry import Collector

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.kinds import Payload
from omnistage.stages.device.compiling import count_compiles
from omnistage.stages.diffusion.control.bound import BoundOptions
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.control.defaults import DefaultOptions
from omnistage.stages.diffusion.control.extra import ExtraOptions
from omnistage.stages.diffusion.control.metrics import DiffusionMetrics
from omnistage.stages.diffusion.engine.job import awaited
from omnistage.stages.diffusion.engine.step_batcher import MAX_BATCH, StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadedPipeline, LoadOptions
from omnistage.stages.diffusion.merging.learning import first_calls
from omnistage.stages.diffusion.pipeline import HasComponents, Pipeline
from omnistage.stages.diffusion.profiles.profile import profile_of
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.ranks import Ranks, check_ranks
from omnistage.stages.diffusion.request.arguments import (
    STEPS,
    call_arguments,
    frame_rate,
    num_pictures,
)
from omnistage.stages.diffusion.request.coming_arguments import (
    Upstream,
    blank_arguments,
    placed,
)
from omnistage.stages.diffusion.request.controls import control_arguments
from omnistage.stages.diffusion.request.extra import failure_of, spread_texts
from omnistage.stages.diffusion.request.media import fitted, media_arguments, media_of, reading_of
from omnistage.stages.diffusion.request.needs import needed_fields, warm_up_arguments
from omnistage.stages.diffusion.request.outputs import pictures_of
from omnistage.stages.diffusion.request.previews import ON_STEP, Previews, num_steps
from omnistage.stages.diffusion.request.prompt_text import PromptTexts
from omnistage.stages.diffusion.request.sound import audio_of, length_for_warm_up, rate_of, sound_of
from omnistage.stages.diffusion.request.tasks import (
    PipelineTask,
    Tasks,
    arguments_of,
    classes_over,
    makes_alpha,
    takes,
)
from omnistage.stages.diffusion.request.text_tokens import TokenCounter
from omnistage.stages.diffusion.request.told import Told
from omnistage.stages.diffusion.request.videos import check_kind, counted, output_kind
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.edge import Edge, Open
from omnistage.stages.messages.loading import Phase, tell_loading
from omnistage.stages.messages.to_gateway import Ready
from omnistage.stages.worker.failure import RequestError, out_of_memory
from omnistage.stages.worker.stage import Opened, StagePorts

logger = logging.getLogger(__name__)

# Schedulers that stretch a schedule to its end, as Qwen-Image's does, have none of one step.
WARM_UP_STEPS = 2
OPTIONS = frozenset({"max_batch", "warm_up"}).union(
    *(
        options.names()
        for options in (
            LoadOptions,
            ControlOptions,
            BoundOptions,
            DefaultOptions,
            ExtraOptions,
            RankOptions,
        )
    )
)


class DiffusionStage:
    """Loads a pipeline and runs requests in it.

    `engine`: those of LoadOptions, ControlOptions, BoundOptions, DefaultOptions, ExtraOptions and
    RankOptions, `max_batch` (pictures of one forward), `warm_up` (arguments of the calls that come
    before the first request, such as a small height and width). A stage upstream gives arguments of
    the call, and the pipeline is loaded without the components that made them, or it writes the
    prompts.
    """

    def __init__(self, ports: StagePorts) -> None:
        unknown = sorted(set(ports.engine) - OPTIONS)
        if unknown:
            allowed = ", ".join(sorted(OPTIONS))
            raise ValueError(f"unknown engine argument {unknown[0]}; allowed: {allowed}")
        self._ports = ports
        self._load_options = LoadOptions.of(ports.engine)
        self._control_options = ControlOptions.of(ports.engine)
        self._bound_options = BoundOptions.of(ports.engine)
        self._default_options = DefaultOptions.of(ports.engine)
        self._extra_options = ExtraOptions.of(ports.engine)
        self._rank_options = RankOptions.of(ports.engine)
        self._ranks: Ranks | None = None
        self._upstream = Upstream(ports) if Payload.ARGUMENTS in ports.takes else None
        self._replaced = () if self._upstream is None else self._upstream.given.replaces
        self._texts = PromptTexts(ports) if Payload.TEXT in ports.takes else None

    async def start(self) -> Ready:
        """Load, and make two pictures. Other ranks, if there are any, load at the same time."""
        count_compiles()
        if self._rank_options.is_used:
            model, name = self._ports.model, self._ports.name
            await asyncio.to_thread(check_ranks, model, self._load_options, self._rank_options)
            self._ranks = Ranks(model, name, self._ports.engine)  # they end with this thread
        self._engine = await asyncio.to_thread(self._load)
        self._control.attach(self._engine)
        self._metrics = DiffusionMetrics(self._engine, self._control.embeddings)
        bound = self._bound_options.bound(self._tasks, self._engine.speed, self._ports.deadlines)
        work = self._default_options.applied(bound)
        return Ready(
            sample_rate_hz=self._rate_hz,
            commands=self._control.commands,
            work=work,
            reading=reading_of(self._tasks),
        )

    def _read(self, folder: str | None = None) -> HasComponents:
        """The pipeline of a folder, or of ours, on the host."""
        model = folder or self._ports.model
        return self._load_options.read(model, without=self._replaced, stage=self._ports.name)

    def _load(self) -> StepBatcher:
        model = self._ports.model
        if self._ranks is not None:
            self._ranks.meet()
        made = self._load_options.class_in(self._load_options.folder_of(model))
        self._extra_options.check(classes_over(made))
        loaded = self._load_options.load(model, without=self._replaced, stage=self._ports.name)
        self._loaded = loaded
        pipeline = loaded.pipeline
        known = arguments_of(pipeline)
        self._default_options.check(pipeline)
        self._control = Control(
            loaded, self._control_options, self._read, self._ports.name, self._ranks
        )
        self._profile = profile_of(*loaded.parts.dit.values())
        self._tokens = TokenCounter(pipeline)
        self._kind = output_kind(pipeline)
        self._rate_hz = rate_of(pipeline, needs_one=self._kind == "audio")
        short = {
            **({STEPS: WARM_UP_STEPS} if takes(known, STEPS) else {}),
            **length_for_warm_up(known),
            **self._default_options.warm_up(),
            **self._extra_options.defaults(pipeline),
            **self._ports.engine.get("warm_up", {}),
        }
        prompt: Mapping[str, object] = {"prompt": "A warm-up."}
        if self._upstream is not None:
            blank = blank_arguments(self._upstream.given, pipeline, model, short)
            prompt = placed(blank, loaded.device, loaded.dtype)
        once = {**counted(1, prompt, known), **short}
        task = PipelineTask.of(pipeline)
        if self._upstream is not None:
            needed: Collection[str] = frozenset()  # a stage upstream brings what there is
        elif self._ranks is not None:
            needed = task.needed
        else:
            needed = needed_fields(task, loaded.parts.dit, once)
        self._tasks = Tasks.find(pipeline, needed)
        short = warm_up_arguments(task, needed, short)
        once, twice = ({**counted(num, prompt, known), **short} for num in (1, 2))
        if self._ranks is not None:
            self._join(self._ranks, loaded, once)
        max_batch = self._ports.engine.get("max_batch", MAX_BATCH)
        has_side_lanes = loaded.turns is None
        is_bound = self._bound_options.max_megapixels is not None
        compiles = self._load_options.compile
        tell_loading(Phase.COMPILING if compiles else Phase.WARMING_UP)
        return StepBatcher(
            pipeline,
            once,
            twice,
            max_batch,
            has_side_lanes,
            loaded.parts.dit,
            not is_bound,
            beside=self._ranks,
        )

    @torch.inference_mode()
    def _join(self, ranks: Ranks, loaded: LoadedPipeline, once: Mapping[str, object]) -> None:
        """The denoisers of the other ranks, once a call of each was made as without them."""
        tell_loading(Phase.WARMING_UP)
        ranks.shard(loaded)
        alone = first_calls(loaded.pipeline, loaded.parts.dit, once) if ranks.size > 1 else {}
        ranks.join(loaded, alone)
        ranks.share_tiles(loaded)

    async def serve(self, opened: Opened) -> None:
        """Make the pictures of one request; each step is told."""
        told = Told(self._ports, opened.id, self._kind)
        try:
            await self._serve(opened, told)
        finally:
            told.close()

    async def _serve(self, opened: Opened, told: Told) -> None:
        loop = asyncio.get_running_loop()
        body = await self._body(opened)
        if body is None:
            told.nothing()
            return
        check_kind(opened.request.outputs, self._kind)
        task, media = self._tasks.choose(media_of(opened), self._kind)
        pipeline = task.pipeline
        if body.get("background") == "transparent" and not makes_alpha(pipeline):
            message = "This model's pictures have no alpha channel."
            raise RequestError(400, message, param="background", code="unsupported_parameter")
        media, body = fitted(task, media, body)
        keeps_size = "image" in media and self._kind == "image"
        body = self._default_options.completed(body, has_image=keeps_size)
        to_come = self._to_come(opened)
        fields = {name: value for name, value in body.items() if name not in to_come.names}
        arguments = call_arguments(pipeline, fields, opened.request.seed) | to_come.values
        arguments |= media_arguments(task, media, arguments) | control_arguments(pipeline, body)
        arguments |= self._extra_options.arguments(pipeline, body.get("extra"))
        arguments = spread_texts(arguments) | await self._given(opened.id, to_come)
        previews = None
        if body.get("partial_images"):
            previews = Previews(
                pipeline,
                self._loaded.parts.dit,
                arguments,
                body["partial_images"],
                self._profile.before_steps,
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

        job = self._control.submit(body, pipeline, None if reports else report, **arguments)
        job.on_wait = on_wait
        try:
            result = await awaited(job.result)
        except asyncio.CancelledError:
            self._engine.cancel(job)
            raise
        except torch.OutOfMemoryError as error:
            logger.error("request %s: %s", opened.id, error)
            raise out_of_memory(self._ports.name) from None
        except Exception as error:  # noqa: BLE001 - it goes on, or is the request's own
            raise failure_of(error, body.get("extra")) or error from None
        times.finish(num_pictures(body))
        if self._kind == "audio":
            await told.finish_sound(await asyncio.to_thread(audio_of, result))
            return
        text_tokens = self._tokens.count(body["prompt"], body.get("negative_prompt"))
        number = num_pictures(body)
        pictures = await asyncio.to_thread(pictures_of, result, number)
        rate = frame_rate(pipeline, arguments)
        is_heard = self._rate_hz is not None and body.get("audio") is not False
        sound = await asyncio.to_thread(sound_of, result) if is_heard else None
        num_layers = len(pictures) // number if self._kind == "image" else 1
        await told.finish(pictures, text_tokens, rate, self._profile.token_side, sound, num_layers)

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
        coming = await self._upstream.all_of(request_id, to_come)
        self._ports.mark(request_id, "embedded")
        return coming.arguments(self._loaded.device, self._loaded.dtype)

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
        return await self._control.obey(command, arguments)

    @property
    def metrics(self) -> Collector:
        """Returns the metrics of requests, batches and the embedding cache."""
        return self._metrics

    @property
    def progress(self) -> int | None:
        """How many modules and steps were computed; None: none is."""
        return self._engine.progress

    async def alive(self) -> None:
        """A question that only the engine's thread can answer."""
        await awaited(self._engine.ping())

    async def close(self) -> None:
        """Cancel what runs and end the engine's thread."""
        self._control.close()
        await asyncio.to_thread(self._engine.close)
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)
        if self._upstream is not None:
            self._upstream.close()
