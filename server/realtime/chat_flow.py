"""How a session runs a chat: as a caller of the tasks, with its audio in the session's format."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from omnistage.server.audio.encoder import MakeEncoder
from omnistage.server.audio.encoding import encoded
from omnistage.server.chat.schema import ChatRequest
from omnistage.server.http.fields import parse
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat import run_chat
from omnistage.server.tasks.service import LocalCaller, Service

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatFlow:
    """Chats of one session; `threads` does what would hold the event loop up."""

    service: Service
    threads: Executor

    @property
    def runtime(self) -> Runtime:
        """The graph that answers."""
        return self.service.runtime

    async def outputs(
        self, make_body: Callable[[], Body], make_encoder: MakeEncoder
    ) -> AsyncGenerator[Output, None]:
        """Yield what a chat makes, its audio encoded; its body may take a while. ApiError."""
        with ExitStack() as until:
            caller = LocalCaller(until, self.threads)
            chat = await caller.compute(lambda: parse(ChatRequest, make_body()))
            running = await run_chat(self.service, chat, caller)
            async with aclosing(encoded(running.outputs, make_encoder)) as outputs:
                async for output in outputs:
                    yield output

    async def check_images(self, parts: Sequence[dict[str, Any]], place: str) -> None:
        """Read the images of a chat's parts, which then have them as stages read them; ApiError."""
        await self.service.media.load_all([Medium.of_part(part, place) for part in parts])
