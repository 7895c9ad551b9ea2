"""How a session runs a chat: as a caller of the tasks, with its audio in the session's format."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from omnistage.server.common.fields import parse
from omnistage.server.media.audio.encoder import MakeEncoder
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import Output
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat.translate import known_speaker
from omnistage.server.tasks.chat_task import run_chat
from omnistage.server.tasks.service import LocalCaller, Service

Body = Mapping[str, Any]

# They stand for the model's own voice where it has none so called.
OPENAI_VOICES = frozenset(
    {
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    }
)


@dataclass(frozen=True, slots=True)
class ChatFlow:
    """Chats of one session; `threads` does what would hold the event loop up."""

    service: Service
    threads: Executor

    @property
    def runtime(self) -> Runtime:
        """The graph that answers."""
        return self.service.runtime

    def speaker_of(self, voice: str, place: str) -> str | None:
        """Return the speaker of a voice, None for the model's own; ApiError for an unknown one."""
        speakers = self.runtime.fleet.voices
        called = self.runtime.graph.voice_called(voice)
        has_it = called is not None and called.lower() in {name.lower() for name in speakers}
        if not has_it and voice.lower() in OPENAI_VOICES:
            return None
        return known_speaker(called, speakers, place)

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
