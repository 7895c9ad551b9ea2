"""A graph for programs that have an event loop."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from omnistage.connectors import make_connector
from omnistage.server.offline.chats import chat, chat_fields, chats
from omnistage.server.offline.commands import CommandMethods
from omnistage.server.offline.content import ImageLike, Messages, SoundLike
from omnistage.server.offline.engine import Engine, Pieces
from omnistage.server.offline.errors import OmniError, SomeFailed
from omnistage.server.offline.many import Prompt
from omnistage.server.offline.options import OmniOptions, chosen
from omnistage.server.offline.pictures import image_fields, pictures
from omnistage.server.offline.sounds import speech, transcript
from omnistage.server.offline.videos import generated_audio, video
from omnistage.server.runtime.processes.channels import MakeConnector
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.server.tasks.pieces import Answer
from omnistage.server.tasks.transcripts.transcription_fields import (
    TranscriptionRequest,
    TranslationRequest,
)
from omnistage.stage_configs.graph import StageGraph


class AsyncOmni(CommandMethods):
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
        self._engine = Engine(*chosen(model, options), _launch, _make_connector)

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
        answers = await chats(self._engine, prompts, common, progress)
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
        return await self._engine.whole(pictures(self._engine, said, images, mask, control_image))

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
        return self._engine.stream(pictures(self._engine, said, images, mask, control_image))

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
