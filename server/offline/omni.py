"""A graph for programs without an event loop, and for notebooks, where one is running already."""

import os
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from omnistage.connectors import make_connector
from omnistage.server.offline.async_omni import AsyncOmni
from omnistage.server.offline.commands import Asleep
from omnistage.server.offline.errors import OmniError
from omnistage.server.offline.loop_thread import LoopThread
from omnistage.server.offline.many import Prompt
from omnistage.server.offline.options import OmniOptions
from omnistage.server.runtime.processes.channels import MakeConnector
from omnistage.server.runtime.stage_link import StageLauncher
from omnistage.server.tasks.pieces import Answer
from omnistage.stage_configs.graph import StageGraph

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    method: Callable[Concatenate[AsyncOmni, P], Coroutine[object, object, T]],
) -> Callable[Concatenate["Omni", P], T]:
    """Makes a method of Omni of one of AsyncOmni: its signature and docstring, but it waits."""

    @wraps(method)
    def waiting(self: "Omni", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._omni, *args, **kwargs))

    return waiting


def _iterating(
    method: Callable[Concatenate[AsyncOmni, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Omni", P], Iterator[T]]:
    """Makes an iterator's method in the same way; to leave its loop cancels the request."""

    @wraps(method)
    def iterating(self: "Omni", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._thread.iterate(lambda: method(self._omni, *args, **kwargs))

    return iterating


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
            # After the start: what is made last is ended first when the interpreter ends.
            self._closing = weakref.finalize(self, _close, omni, thread, os.getpid())
        except BaseException:  # also an interrupt of a start that had just ended
            _close(omni, thread, os.getpid())
            raise

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
        """Returns what its answers can have: text, audio, image, video."""
        return self._omni.modalities

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices that it can speak with."""
        return self._omni.voices

    def __repr__(self) -> str:
        return repr(self._omni).removeprefix("Async")

    @property
    def sleeping(self) -> Asleep:
        """Returns, by stage, what of it sleeps."""
        return self._omni.sleeping

    chat = _waiting(AsyncOmni.chat)
    stream_chat = _iterating(AsyncOmni.stream_chat)
    images = _waiting(AsyncOmni.images)
    stream_images = _iterating(AsyncOmni.stream_images)
    video = _waiting(AsyncOmni.video)
    stream_video = _iterating(AsyncOmni.stream_video)
    generate_audio = _waiting(AsyncOmni.generate_audio)
    speech = _waiting(AsyncOmni.speech)
    stream_speech = _iterating(AsyncOmni.stream_speech)
    transcribe = _waiting(AsyncOmni.transcribe)
    translate = _waiting(AsyncOmni.translate)
    sleep = _waiting(AsyncOmni.sleep)
    wake = _waiting(AsyncOmni.wake)
    load_weights = _waiting(AsyncOmni.load_weights)
    scale = _waiting(AsyncOmni.scale)
    add_lora = _waiting(AsyncOmni.add_lora)
    remove_lora = _waiting(AsyncOmni.remove_lora)
    pin_lora = _waiting(AsyncOmni.pin_lora)
    loras = _waiting(AsyncOmni.loras)

    @overload
    def generate(
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
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        return_errors: Literal[True],
        progress: bool | None = ...,
        modalities: Sequence[str] | None = ...,
        voice: str | None = ...,
        **fields: object,
    ) -> list[Answer | OmniError]: ...

    def generate(
        self, prompts: Sequence[Prompt], **options: Any
    ) -> list[Answer] | list[Answer | OmniError]:
        """Generates like AsyncOmni.generate."""
        answers: list[Answer] = self._thread.run(self._omni.generate(prompts, **options))
        return answers


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
