"""A graph for programs that have an event loop."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack, overload

from omnistage.connectors import make_connector
from omnistage.server.offline.chats import chat
from omnistage.server.offline.commands import (
    Adapters,
    Asleep,
    PathLike,
    asleep,
    change_adapters,
    change_replicas,
    change_sleep,
    load_weights,
    whole,
)
from omnistage.server.offline.content import ImageLike, Messages, SoundLike
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.errors import OmniError, SomeFailed
from omnistage.server.offline.many import Prompt, answer_all, fields_of, progress_bar
from omnistage.server.offline.options import GraphChoice, OfflineOptions, Overrides
from omnistage.server.offline.pictures import pictures, several
from omnistage.server.offline.sounds import speech, transcript
from omnistage.server.offline.videos import generated_audio, video
from omnistage.server.options import RunKeywords, given_fields
from omnistage.server.runtime.processes.channels import MakeConnector
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.server.tasks.command_fields import (
    AddLora,
    OfStages,
    PinLora,
    RemoveLora,
    Sleep,
    Wake,
)
from omnistage.server.tasks.pieces import Answer
from omnistage.server.tasks.transcripts.transcription_fields import (
    TranscriptionRequest,
    TranslationRequest,
)
from omnistage.stage_configs.graph import StageGraph

if TYPE_CHECKING:
    from omnistage.stages.device.shared_weights import Weights


class OmniOptions(RunKeywords, total=False):
    """Keywords of Omni and AsyncOmni: options of `omnistage serve`, and some of the graph.

    `graph`: a graph file for the model. `stages`: for a stage by its name, keys of the graph file,
    or arguments of its engine. `deadlines`: those of the graph file. `progress`: whether bars show
    on a terminal.
    """

    graph: str | Path
    stages: Overrides
    load_format: Literal["auto", "dummy"]
    offload: Literal["sequential", "layerwise"]
    deadlines: Mapping[str, float]
    max_requests: int
    progress: bool


def engine_of(
    model: str | Path | StageGraph,
    options: OmniOptions,
    launch: StageLauncher | None = None,
    make_connector: MakeConnector = make_connector,
) -> Engine:
    """The graph of a model; raises StartFailed."""
    unknown = options.keys() - OmniOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    graph_file = options.get("graph")
    choice: GraphChoice | StageGraph = (
        model
        if isinstance(model, StageGraph)
        else GraphChoice(
            str(model),
            None if graph_file is None else str(graph_file),
            options.get("stages", {}),
            options.get("load_format"),
            options.get("offload"),
            options.get("deadlines", {}),
        )
    )
    chosen = given_fields(OfflineOptions, options)
    chosen |= {name: options[name] for name in ("max_requests", "progress") if name in options}
    return Engine(choice, OfflineOptions(**chosen), launch, make_connector)


class AsyncOmni:
    """A model as `async with AsyncOmni("MODEL") as omni`: its stages run until the end of it.

    `fields` of each method are those of the server's endpoint with the same checks and defaults.
    Methods raise OmniError; those called stream_… give pieces as they come, the Answer last.
    """

    def __init__(
        self,
        model: str | Path | StageGraph,
        *,
        _launch: StageLauncher | None = None,
        _make_connector: MakeConnector = make_connector,
        **options: Unpack[OmniOptions],
    ) -> None:
        self._engine = engine_of(model, options, _launch, _make_connector)

    # Life

    async def start(self) -> Self:
        """Return when every stage is ready; raises StartFailed."""
        await self._engine.start()
        return self

    async def close(self) -> None:
        """Fail what still runs and end the stages; may be called twice."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # What it is

    @property
    def model(self) -> str:
        """The model's name."""
        return self._engine.graph.model

    @property
    def modalities(self) -> tuple[str, ...]:
        """Returns what its answers can have: text, audio, image, video."""
        return tuple(self._engine.graph.outputs)

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices that it can speak with."""
        return tuple(self._engine.runtime.fleet.voices) if self._engine.is_open else ()

    def __repr__(self) -> str:
        state = "" if self._engine.is_open else ", closed"
        return f"{type(self).__name__}({self.model!r}, {'+'.join(self.modalities)}{state})"

    # Chats

    async def chat(
        self,
        /,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        **fields: object,
    ) -> Answer:
        """Answer a conversation; a string is one turn of the user.

        `fields` are those of /v1/chat/completions. Parts of messages may be Python's objects.
        """
        said = chat_fields(messages, modalities, voice, fields)
        return await self._engine.whole(chat(self._engine, said))

    def stream_chat(
        self,
        /,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        **fields: object,
    ) -> Pieces:
        """The same, as it is made: Text, Reasoning, ToolCall, Audio, Picture, then the Answer."""
        said = chat_fields(messages, modalities, voice, fields)
        return self._engine.stream(chat(self._engine, said))

    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: Literal[False] = ...,
        progress: bool | None = ...,
        modalities: Sequence[str] | None = ...,
        voice: str | None = ...,
        **fields: object,
    ) -> list[Answer]: ...

    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: Literal[True],
        progress: bool | None = ...,
        modalities: Sequence[str] | None = ...,
        voice: str | None = ...,
        **fields: object,
    ) -> list[Answer | OmniError]: ...

    async def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: bool = False,
        progress: bool | None = None,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        **fields: object,
    ) -> list[Answer] | list[Answer | OmniError]:
        """The answers to many chats, in their order, at most `max_requests` of them at once.

        A prompt is a turn of the user, a conversation, or the fields of a chat with its `messages`,
        which win over `fields`. All are answered before SomeFailed is raised for those that failed;
        with `return_errors` each error is in the list in place of its answer.
        """
        if isinstance(prompts, str | Mapping):
            raise TypeError("prompts must be a list; chat answers one")
        common = chat_fields(None, modalities, voice, fields)
        is_shown = self._engine.options.progress if progress is None else progress
        engine = self._engine

        async def ask(prompt: Prompt) -> Answer:
            return await engine.whole(chat(engine, fields_of(prompt, common)))

        with progress_bar(len(prompts), is_shown) as on_done:
            answers = await answer_all([partial(ask, one) for one in prompts], on_done)
        if return_errors:
            return answers
        whole = [one for one in answers if isinstance(one, Answer)]
        if len(whole) < len(answers):
            raise SomeFailed(answers)
        return whole

    # Pictures

    async def images(
        self,
        /,
        prompt: str | Sequence[str],
        *,
        images: Sequence[ImageLike] = (),
        mask: ImageLike | None = None,
        control_image: ImageLike | Sequence[ImageLike] = (),
        **fields: object,
    ) -> Answer:
        """Make pictures of words, or edit `images`; `fields` are those of /v1/images."""
        said = image_fields(prompt, fields, is_streamed=False)
        made = pictures(self._engine, said, images, mask, several(control_image))
        return await self._engine.whole(made)

    def stream_images(
        self,
        /,
        prompt: str | Sequence[str],
        *,
        images: Sequence[ImageLike] = (),
        mask: ImageLike | None = None,
        control_image: ImageLike | Sequence[ImageLike] = (),
        **fields: object,
    ) -> Pieces:
        """The same, as they are made: Progress, Preview (with `partial_images`), Picture."""
        said = image_fields(prompt, fields, is_streamed=True)
        made = pictures(self._engine, said, images, mask, several(control_image))
        return self._engine.stream(made)

    # Videos and audio of descriptions

    async def video(self, /, prompt: str, **fields: object) -> Answer:
        """Make a video of words, and of media; `fields` are those of /v1/videos/sync.

        Media may be Python's objects: images, (frames, frames_per_second), (samples, rate_hz).
        """
        return await self._engine.whole(video(self._engine, {**fields, "prompt": prompt}))

    def stream_video(self, /, prompt: str, **fields: object) -> Pieces:
        """The same, as it is made: Progress, then the Answer."""
        return self._engine.stream(video(self._engine, {**fields, "prompt": prompt}))

    async def generate_audio(self, /, text: str, **fields: object) -> Answer:
        """Make sounds or music of a description; `fields` are those of /v1/audio/generate."""
        return await self._engine.whole(generated_audio(self._engine, {**fields, "input": text}))

    # Speech

    async def speech(self, /, text: str, *, voice: str | None = None, **fields: object) -> Answer:
        """Speak a text as it is; `fields` are those of /v1/audio/speech."""
        return await self._engine.whole(
            speech(self._engine, {**fields, "input": text, "voice": voice})
        )

    def stream_speech(self, /, text: str, *, voice: str | None = None, **fields: object) -> Pieces:
        """The same, as it is spoken: Audio, then the Answer."""
        return self._engine.stream(speech(self._engine, {**fields, "input": text, "voice": voice}))

    async def transcribe(self, /, sound: SoundLike, **fields: object) -> Answer:
        """Write down what was said; `fields` are those of /v1/audio/transcriptions."""
        return await self._engine.whole(
            transcript(self._engine, TranscriptionRequest, sound, fields)
        )

    async def translate(self, /, sound: SoundLike, **fields: object) -> Answer:
        """Write down in English what was said; `fields` are those of /v1/audio/translations."""
        return await self._engine.whole(transcript(self._engine, TranslationRequest, sound, fields))

    # Commands

    @property
    def sleeping(self) -> Asleep:
        """By stage, what of it sleeps."""
        return asleep(self._engine)

    async def sleep(
        self,
        level: int = 1,
        tags: Sequence[str] | None = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """Let requests end, then put weights into the host's memory (1), or drop them (2).

        Fields, refusals and what is meant without `stages` are those of /admin, for all commands.
        """
        said = {"level": level, "tags": tags, "stages": stages}
        return await change_sleep(self._engine, "sleep", Sleep, said)

    async def wake(
        self, tags: Sequence[str] | None = None, stages: Sequence[str] | None = None
    ) -> Asleep:
        """Put back what sleeps, or the parts of it that `tags` name."""
        return await change_sleep(self._engine, "wake", Wake, {"tags": tags, "stages": stages})

    async def load_weights(
        self,
        weights: "PathLike | Weights | None" = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """Load a folder, or pairs of a name and a tensor; None: the last folder again.

        Pairs are all of a checkpoint, by its own names; of a pipeline all of some components, as
        `transformer.proj_out.weight`. They are read in another thread, and copied to a folder in
        shared memory that is gone afterwards.
        """
        return await load_weights(self._engine, weights, {"stages": stages})

    async def scale(self, stage: str, replicas: int) -> tuple[str, ...]:
        """Have so many replicas of a stage, without losing a request; those that it has now."""
        said = {"stage": stage, "replicas": replicas}
        return await change_replicas(self._engine, said)

    async def add_lora(
        self,
        name: str,
        path: PathLike,
        *,
        weight_name: str | None = None,
        pinned: bool = False,
        stages: Sequence[str] | None = None,
    ) -> Adapters:
        """Add a LoRA adapter; by stage, those that it has now."""
        said = {"name": name, "path": whole(path), "weight_name": weight_name, "pinned": pinned}
        return await change_adapters(self._engine, "add_lora", AddLora, {**said, "stages": stages})

    async def remove_lora(self, name: str, stages: Sequence[str] | None = None) -> Adapters:
        """Remove an adapter that no request uses."""
        said = {"name": name, "stages": stages}
        return await change_adapters(self._engine, "remove_lora", RemoveLora, said)

    async def pin_lora(
        self, name: str, pinned: bool = True, stages: Sequence[str] | None = None
    ) -> Adapters:
        """Keep an adapter from being evicted, or no longer."""
        said = {"name": name, "pinned": pinned, "stages": stages}
        return await change_adapters(self._engine, "pin_lora", PinLora, said)

    async def loras(self) -> Adapters:
        """By stage that takes adapters, those that it has."""
        return await change_adapters(self._engine, "list_loras", OfStages, {})


def chat_fields(
    messages: Messages | None,
    modalities: Sequence[str] | None,
    voice: str | None,
    fields: Mapping[str, object],
) -> dict[str, object]:
    """The fields of a chat's body; those that are None are left out later."""
    said = {**fields, "messages": messages}
    if modalities is not None:
        said["modalities"] = list(modalities)
    if voice is not None:
        audio = fields.get("audio") or {}
        said["audio"] = {**audio, "voice": voice} if isinstance(audio, Mapping) else audio
    return said


def image_fields(
    prompt: str | Sequence[str], fields: Mapping[str, object], is_streamed: bool
) -> dict[str, object]:
    """The fields of a body of /v1/images."""
    words = prompt if isinstance(prompt, str) else list(prompt)
    return {**fields, "prompt": words, "stream": is_streamed}
