"""How a session runs a chat: as a caller of the tasks, with its audio in the session's format."""

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from omnistage.server.common.fields import parse
from omnistage.server.common.served import DEFAULT_VOICE, known_speaker
from omnistage.server.media.audio.encoder import MakeEncoder
from omnistage.server.media.audio.encoding import encoded
from omnistage.server.media.medium import Medium
from omnistage.server.runtime.request import Output, Outputs
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.tasks.chat.schema import ChatRequest
from omnistage.server.tasks.chat_task import run_chat
from omnistage.server.tasks.service import LocalCaller, Service
from omnistage.server.tasks.spoken_chat import run_spoken_chat
from omnistage.stage_configs.graph_parts import chat_hears, has_speech_apart
from omnistage.stage_configs.json_types import Json, JsonMap

Body = JsonMap

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

    @property
    def hears(self) -> bool:
        """Returns whether the model that answers takes audio; another gets what was said."""
        return chat_hears(self.runtime.graph)

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
            made = await self._begun(make_body, caller)
            async with aclosing(encoded(made, make_encoder)) as outputs:
                async for output in outputs:
                    yield output

    async def _begun(self, make_body: Callable[[], Body], caller: LocalCaller) -> Outputs:
        def parsed() -> tuple[ChatRequest, str | None]:
            body = {**make_body()}
            voice = None
            if is_apart and "audio" in body["modalities"]:
                voice = (body.pop("audio", None) or {}).get("voice", DEFAULT_VOICE)
                body["modalities"] = ["text"]
            return parse(ChatRequest, body), voice

        is_apart = has_speech_apart(self.runtime.graph)
        chat, voice = await caller.compute(parsed)
        if voice is not None:
            return await run_spoken_chat(self.service, chat, voice, caller)
        return (await run_chat(self.service, chat, caller)).outputs

    async def read(self, make_body: Callable[[], Body], keeps_rows: bool) -> None:
        """Have a chat's prompt read for those that go on with it; raises ApiError."""
        with ExitStack() as until:
            caller = LocalCaller(until, self.threads)
            chat = await caller.compute(lambda: parse(ChatRequest, make_body()))
            running = await run_chat(self.service, chat, caller, keeps_rows=keeps_rows)
            async with aclosing(running.outputs) as outputs:
                async for _ in outputs:
                    pass

    async def check_images(self, parts: Sequence[Json], place: str) -> None:
        """Read the images of a chat's parts, which then have them as stages read them; ApiError."""
        await self.service.media.load_all([Medium.of_part(part, place) for part in parts])
