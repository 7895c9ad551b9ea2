"""The service behind every task: the running graph, what its requests share, and the client."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import GraphRequest, Outputs
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat.audio_history import AudioHistory
from omnistage.server.tasks.speech.stored_voices import StoredVoices

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """A graph that runs, with the media, voices and spoken answers that its requests share."""

    runtime: Runtime
    media: MediaLoader
    voices: StoredVoices
    history: AudioHistory = field(default_factory=AudioHistory, kw_only=True)


class Caller(Protocol):
    """A door's view of one request: how its preparation runs, and when its answer has ended."""

    @property
    def until(self) -> ExitStack:
        """Closed when the answer has ended: then the request's place and memory are given back."""

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work that may take a while, without holding the event loop up."""

    async def wait(self, loading: Coroutine[object, object, T]) -> T:
        """Await what is loaded, while somebody waits for the answer; raises ApiError if late."""


@dataclass(frozen=True, slots=True)
class LocalCaller:
    """A caller in this process: it cancels its task to cancel the request.

    `threads` does the work that would hold the event loop up; None: it is done here.
    """

    until: ExitStack
    threads: Executor | None = None

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work in one of the threads, with the caller's context."""
        if self.threads is None:
            return work()
        context = copy_context()
        return await asyncio.get_running_loop().run_in_executor(self.threads, context.run, work)

    async def wait(self, loading: Coroutine[object, object, T]) -> T:
        """Await what is loaded; the caller has its own deadline around all."""
        return await loading


async def send(
    service: Service, request: GraphRequest, caller: Caller, media: Iterable[Medium] = ()
) -> tuple[GraphRequest, Outputs]:
    """Admit a request, load its media and send it: the request as sent, and its outputs.

    Its place is held until the caller's answer has ended. Raises ApiError.
    """
    ticket = caller.until.enter_context(service.runtime.flights.admit(request.message.outputs))
    given = list(media)
    if given:
        loaded = await caller.wait(service.media.load_all(given))
        request = replace(request, media=loaded)
    return request, ticket.run(request)
