"""A graph for programs without an event loop, and for notebooks, where one is running already."""

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from omnistage.connectors import make_connector
from omnistage.server.offline.async_omni import AsyncOmni, OmniOptions
from omnistage.server.offline.commands import Adapters, Asleep, PathLike
from omnistage.server.offline.content import ImageLike, Messages, SoundLike
from omnistage.server.offline.errors import OmniError
from omnistage.server.offline.loop_thread import LoopThread
from omnistage.server.offline.many import Prompt
from omnistage.server.offline.outputs import Answer, Piece
from omnistage.server.runtime.channels import MakeConnector
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.stage_configs.graph import StageGraph

if TYPE_CHECKING:
    from omnistage.stages.device.shared_weights import Weights


class Omni:
    """A model as `with Omni("MODEL") as omni`, whose methods are AsyncOmni's and wait.

    Its stages start with it and end with the block, by `close()`, when nothing refers to it any
    more, or when the interpreter ends. Several threads may use it at once.
    """

    def __init__(
        self,
        model: str | Path | StageGraph,
        *,
        _launch: StageLauncher | None = None,
        _make_connector: MakeConnector = make_connector,
        **options: Unpack[OmniOptions],
    ) -> None:
        omni = AsyncOmni(model, _launch=_launch, _make_connector=_make_connector, **options)
        thread = LoopThread()
        self._omni, self._thread = omni, thread
        try:
            thread.run(omni.start())
        except BaseException:
            thread.stop()
            raise
        # After the start: what is made last is ended first when the interpreter ends.
        self._closing = weakref.finalize(self, _close, omni, thread, os.getpid())

    # Life

    def close(self) -> None:
        """Fail what still runs and end the stages; may be called twice."""
        if self._closing.alive:
            _close(self._omni, self._thread, os.getpid())
            self._closing.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What it is

    @property
    def model(self) -> str:
        """The model's name."""
        return self._omni.model

    @property
    def modalities(self) -> tuple[str, ...]:
        """What its answers can have: text, audio, image."""
        return self._omni.modalities

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices that it can speak with."""
        return self._omni.voices

    def __repr__(self) -> str:
        return repr(self._omni).removeprefix("Async")

    # Chats

    def chat(
        self,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        **fields: Any,
    ) -> Answer:
        """As AsyncOmni.chat."""
        return self._thread.run(
            self._omni.chat(messages, modalities=modalities, voice=voice, **fields)
        )

    def stream_chat(
        self,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        **fields: Any,
    ) -> Iterator[Piece]:
        """As AsyncOmni.stream_chat; to leave the loop cancels the request."""
        return self._thread.iterate(
            lambda: self._omni.stream_chat(messages, modalities=modalities, voice=voice, **fields)
        )

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: Literal[False] = ...,
        progress: bool | None = ...,
        modalities: Sequence[str] | None = ...,
        voice: str | None = ...,
        **fields: Any,
    ) -> list[Answer]: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: Literal[True],
        progress: bool | None = ...,
        modalities: Sequence[str] | None = ...,
        voice: str | None = ...,
        **fields: Any,
    ) -> list[Answer | OmniError]: ...

    def generate(
        self, prompts: Sequence[Prompt], **options: Any
    ) -> list[Answer] | list[Answer | OmniError]:
        """As AsyncOmni.generate."""
        answers: list[Answer] = self._thread.run(self._omni.generate(prompts, **options))
        return answers

    # Pictures

    def images(
        self,
        prompt: str | Sequence[str],
        *,
        images: Sequence[ImageLike] = (),
        mask: ImageLike | None = None,
        **fields: Any,
    ) -> Answer:
        """As AsyncOmni.images."""
        return self._thread.run(self._omni.images(prompt, images=images, mask=mask, **fields))

    def stream_images(
        self,
        prompt: str | Sequence[str],
        *,
        images: Sequence[ImageLike] = (),
        mask: ImageLike | None = None,
        **fields: Any,
    ) -> Iterator[Piece]:
        """As AsyncOmni.stream_images; to leave the loop cancels the request."""
        return self._thread.iterate(
            lambda: self._omni.stream_images(prompt, images=images, mask=mask, **fields)
        )

    # Speech

    def speech(self, text: str, *, voice: str | None = None, **fields: Any) -> Answer:
        """As AsyncOmni.speech."""
        return self._thread.run(self._omni.speech(text, voice=voice, **fields))

    def stream_speech(
        self, text: str, *, voice: str | None = None, **fields: Any
    ) -> Iterator[Piece]:
        """As AsyncOmni.stream_speech; to leave the loop cancels the request."""
        return self._thread.iterate(lambda: self._omni.stream_speech(text, voice=voice, **fields))

    def transcribe(self, sound: SoundLike, **fields: Any) -> Answer:
        """As AsyncOmni.transcribe."""
        return self._thread.run(self._omni.transcribe(sound, **fields))

    def translate(self, sound: SoundLike, **fields: Any) -> Answer:
        """As AsyncOmni.translate."""
        return self._thread.run(self._omni.translate(sound, **fields))

    # Commands

    @property
    def sleeping(self) -> Asleep:
        """By stage, what of it sleeps."""
        return self._omni.sleeping

    def sleep(
        self,
        level: int = 1,
        tags: Sequence[str] | None = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """As AsyncOmni.sleep."""
        return self._thread.run(self._omni.sleep(level, tags, stages))

    def wake(
        self, tags: Sequence[str] | None = None, stages: Sequence[str] | None = None
    ) -> Asleep:
        """As AsyncOmni.wake."""
        return self._thread.run(self._omni.wake(tags, stages))

    def load_weights(
        self,
        weights: "PathLike | Weights | None" = None,
        stages: Sequence[str] | None = None,
    ) -> Asleep:
        """As AsyncOmni.load_weights."""
        return self._thread.run(self._omni.load_weights(weights, stages))

    def scale(self, stage: str, replicas: int) -> tuple[str, ...]:
        """As AsyncOmni.scale."""
        return self._thread.run(self._omni.scale(stage, replicas))

    def add_lora(
        self,
        name: str,
        path: PathLike,
        *,
        weight_name: str | None = None,
        pinned: bool = False,
        stages: Sequence[str] | None = None,
    ) -> Adapters:
        """As AsyncOmni.add_lora."""
        return self._thread.run(
            self._omni.add_lora(name, path, weight_name=weight_name, pinned=pinned, stages=stages)
        )

    def remove_lora(self, name: str, stages: Sequence[str] | None = None) -> Adapters:
        """As AsyncOmni.remove_lora."""
        return self._thread.run(self._omni.remove_lora(name, stages))

    def pin_lora(
        self, name: str, pinned: bool = True, stages: Sequence[str] | None = None
    ) -> Adapters:
        """As AsyncOmni.pin_lora."""
        return self._thread.run(self._omni.pin_lora(name, pinned, stages))

    def loras(self) -> Adapters:
        """As AsyncOmni.loras."""
        return self._thread.run(self._omni.loras())


def _close(omni: AsyncOmni, thread: LoopThread, pid: int) -> None:
    """End it, wherever nothing refers to it any more; not in a process that was forked off."""
    if os.getpid() != pid:
        return
    if thread.is_here:  # the collector came by in the loop's own thread
        thread.submit(_close_then_stop(omni, thread))
        return
    thread.run(omni.close(), is_kept=True)
    thread.stop()


async def _close_then_stop(omni: AsyncOmni, thread: LoopThread) -> None:
    await omni.close()
    thread.stop()
