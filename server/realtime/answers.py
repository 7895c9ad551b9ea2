"""The responses that a session has under way: one of its conversation, and some out of band."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import partial

from omnistage.server.errors import ApiError, internal_error
from omnistage.server.http.deadline import due_at
from omnistage.server.http.outbox import Outbox
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.chat_flow import Body, ChatFlow
from omnistage.server.realtime.conversation import messages_of
from omnistage.server.realtime.formats import output_encoder
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.response import Response
from omnistage.server.realtime.settings import RealtimeSettings, ResponseSettings
from omnistage.server.responses.translate import chat_tools
from omnistage.server.runtime.request import AudioOutput, TextOutput
from omnistage.server.trace import FIRST_AUDIO, FIRST_TEXT, GATEWAY

logger = logging.getLogger(__name__)

SLOW_S = 20.0  # for a client to take what was told
USAGE = {"include_usage": True, "continuous_usage_stats": True}  # of cancelled responses, too

# Makes the state of one answer, which is followed and counted as a request of its own.
Followed = Callable[[], AbstractContextManager[RequestState]]


class Answer:
    """One response under way: runs its chat, and ends it early."""

    def __init__(self, response: Response, flow: ChatFlow, outbox: Outbox) -> None:
        self.response = response
        self._flow = flow
        self._outbox = outbox
        self._task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()  # its first words or sound have left, or it has ended

    @property
    def is_over(self) -> bool:
        """Returns whether its end has been told."""
        return self.response.is_over

    def start(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Have a task that runs it, which `cancel` cancels."""
        self._task = task
        return task

    def cancel(self, reason: str) -> None:
        """End it now: its stages are told, and nothing more of it is sent."""
        assert self._task is not None
        self._task.cancel()
        self.begun.set()
        self.response.cancel(reason)

    def withdraw(self) -> None:
        """Take back what of it has not left yet."""
        self.response.withdraw(self._outbox)

    async def run(self, make_body: Callable[[], Body], followed: Followed) -> None:
        """Answer, and tell its end; raises ClientTooSlow alone."""
        response = self.response
        try:
            with followed() as state:
                try:
                    await self._answer(make_body, state)
                finally:
                    self.begun.set()
        except ClientTooSlow:
            raise
        except ApiError as error:
            if not response.is_over:
                response.fail(error)
        except Exception:
            logger.exception("a response failed")
            if not response.is_over:
                response.fail(internal_error())
        else:
            response.complete()

    async def _answer(self, make_body: Callable[[], Body], state: RequestState) -> None:
        output = self.response.settings.audio.output
        make_encoder = partial(output_encoder, output.format.type, output.speed)
        state.charge()
        async with (
            due_at(state.due_at),
            aclosing(self._flow.outputs(make_body, make_encoder)) as outputs,
        ):
            async for made in outputs:
                if isinstance(made, TextOutput):
                    self.response.add_chunk(made.chunk)
                    state.trace.timeline.mark(GATEWAY, FIRST_TEXT)
                elif isinstance(made, AudioOutput):
                    for piece in self.response.pieces_of(made.data):
                        self.response.add_audio(piece)
                        await self._sent()
                        state.trace.timeline.mark(GATEWAY, FIRST_AUDIO)
                    if made.last:
                        self.response.end_audio(made.num_frames)
                await self._sent()

    async def _sent(self) -> None:
        """Return when the client has taken all: its stages stop at their credit meanwhile."""
        try:
            async with asyncio.timeout(SLOW_S):
                await self._outbox.empty()
        except TimeoutError:
            raise ClientTooSlow(f"nothing was taken for {SLOW_S:g} s") from None
        self.response.note_sent()
        if self.response.has_sound or not self.response.is_spoken:
            self.begun.set()


def chat_body(
    items: Sequence[Item],
    settings: ResponseSettings,
    session: RealtimeSettings,
    speaker: str | None,
) -> Body:
    """Return the chat that a response is; takes a while with audio. Raises ApiError."""
    is_spoken = settings.output_modalities == ["audio"]
    body = {
        "model": session.model,
        "messages": messages_of(items, settings.instructions),
        "modalities": ["text", "audio"] if is_spoken else ["text"],
        "stream": True,
        "stream_options": USAGE,
        "temperature": settings.temperature,
        "parallel_tool_calls": settings.parallel_tool_calls,
        **chat_tools(enumerate(settings.tools), settings.tool_choice),
    }
    if is_spoken and speaker is not None:
        body["audio"] = {"voice": speaker, "format": "wav"}
    if settings.max_output_tokens != "inf":
        body["max_completion_tokens"] = settings.max_output_tokens
    return {name: value for name, value in body.items() if value is not None}
