"""The responses that a session has under way: one of its conversation, and some out of band."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from omnistage.server.common.deadline import due_at
from omnistage.server.common.errors import ApiError, internal_error, unsupported
from omnistage.server.common.served import check_makes
from omnistage.server.common.trace import FIRST_AUDIO, FIRST_TEXT, GATEWAY
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.chat_flow import Body
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.context import ContextTruncation, TokenRates
from omnistage.server.realtime.conversation import messages_of
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.response import Response
from omnistage.server.realtime.settings import (
    RealtimeSettings,
    ResponseSettings,
    Settings,
    TranscriptionSettings,
)
from omnistage.server.realtime.updates import response_settings
from omnistage.server.realtime.voice.formats import output_encoder
from omnistage.server.responses.translate import chat_tools
from omnistage.server.runtime.request import AudioOutput, TextOutput

logger = logging.getLogger(__name__)

SLOW_S = 20.0  # for a client to take what was told
MAX_OUT_OF_BAND = 4
USAGE = {"include_usage": True, "continuous_usage_stats": True}  # of cancelled responses, too

TOO_LONG = "context_length_exceeded"
Refuse = Callable[[ApiError], None]
MakeBody = Callable[[Sequence[Item]], Body]


class RealtimeAnswer:
    """One response under way: runs its chat, and ends it early."""

    def __init__(
        self,
        response: Response,
        common: Common,
        items: Sequence[Item],
        truncation: ContextTruncation | None = None,
    ) -> None:
        self.response = response
        self._items = items
        self._truncation = truncation  # of the conversation, if it is too long
        self._common = common
        self._task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()  # its first words or sound have left, or it has ended

    @property
    def is_over(self) -> bool:
        """Returns whether its end has been told."""
        return self.response.is_over

    def start(self, make_body: MakeBody) -> asyncio.Task[None]:
        """Begin; the task raises ClientTooSlow alone."""
        self.response.begin()
        self._task = self._common.tasks.begin(self._run(make_body))
        return self._task

    def cancel(self, reason: str) -> None:
        """End it now: its stages are told, and nothing more of it is sent."""
        assert self._task is not None
        self._task.cancel()
        self.begun.set()
        self.response.cancel(reason)

    def withdraw(self) -> None:
        """Take back what of it has not left yet."""
        self.response.withdraw(self._common.outbox)

    async def _run(self, make_body: MakeBody) -> None:
        response = self.response
        try:
            with self._common.followed() as state:
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

    async def _answer(self, make_body: MakeBody, state: RequestState) -> None:
        """Answer; a conversation that is too long is shortened as the session says."""
        state.charge()
        if self._truncation is not None and self._truncation.fit():
            self._leave_out()
        async with due_at(state.due_at):
            while True:
                try:
                    await self._make(make_body, state)
                    return
                except ApiError as error:
                    if error.code != TOO_LONG or self.response.has_output or not self._shorten():
                        raise
                finally:
                    if self._truncation is not None:
                        self._truncation.learn(self._items, self.response.chat_usage)

    def _shorten(self) -> bool:
        if self._truncation is None or not self._truncation.shorten():
            return False
        self._leave_out()
        return True

    def _leave_out(self) -> None:
        """Keep the items that the conversation's context still has."""
        kept = {item.id for item in self._common.conversation.context}
        self._items = [item for item in self._items if item.id in kept]

    async def _make(self, make_body: MakeBody, state: RequestState) -> None:
        output = self.response.settings.audio.output
        make_encoder = partial(output_encoder, output.format.type, output.speed)
        flow = self._common.flow
        body = partial(make_body, self._items)
        async with aclosing(flow.outputs(body, make_encoder)) as outputs:
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
                await self._common.outbox.empty()
        except TimeoutError:
            raise ClientTooSlow(f"nothing was taken for {SLOW_S:g} s") from None
        self.response.note_sent()
        if self.response.has_sound or not self.response.is_spoken:
            self.begun.set()


class Answers:
    """The responses of one session, and the one that it owes to a turn."""

    def __init__(
        self, common: Common, settings: Callable[[], Settings], tell_error: Refuse
    ) -> None:
        self.active: RealtimeAnswer | None = None  # of the conversation
        self.on_end: Callable[[Response], None] = lambda _: None
        """Called when the conversation's response has ended of itself."""
        self._common = common
        self._settings = settings
        self._tell_error = tell_error
        self._out_of_band: dict[str, RealtimeAnswer] = {}
        self._is_owed = False
        self._rates = TokenRates()

    def _check_free(self, given: Mapping[str, Any]) -> None:
        """Raise ApiError if a response with these fields cannot begin now."""
        if given.get("conversation") == "none":
            if len(self._out_of_band) >= MAX_OUT_OF_BAND:
                message = f"The session already has {MAX_OUT_OF_BAND} responses out of band."
                raise ApiError(400, message, code="too_many_responses")
        elif self.active is not None and not self.active.is_over:
            response_id = self.active.response.id
            message = (
                "Conversation already has an active response in progress: "
                f"{response_id}. Wait until the response is finished before creating a new one."
            )
            raise ApiError(400, message, code="conversation_already_has_active_response")

    def begin(self, given: Mapping[str, Any], items: Sequence[Item] | None = None) -> None:
        """Begin a response, to the conversation or to given items; raises ApiError."""
        common, session = self._common, self._settings()
        if isinstance(session, TranscriptionSettings):
            raise unsupported("type", "response.create in a transcription session")
        self._check_free(given)
        settings = response_settings(session, given)
        for modality in settings.output_modalities:
            check_makes(modality, common.flow.runtime.graph.outputs, modality)
        voice = settings.audio.output.voice
        speaker = common.flow.speaker_of(voice, "response.audio.output.voice")
        is_out_of_band = settings.conversation == "none"
        conversation = None if is_out_of_band else common.conversation
        response = Response(settings, conversation, common.conversation_id, common.tell)
        chat = common.conversation.context if items is None else items
        truncation = None
        if items is None:
            about = (session, settings, common.flow.runtime)
            truncation = ContextTruncation(common.conversation, self._rates, *about)
        answer = RealtimeAnswer(response, common, chat, truncation)
        if is_out_of_band:
            self._out_of_band[response.id] = answer
        else:
            self.active, self._is_owed = answer, False
        task = answer.start(partial(chat_body, settings, session, speaker))
        task.add_done_callback(lambda _: common.tasks.run(lambda: self._end(answer)))

    def _end(self, answer: RealtimeAnswer) -> None:
        self._out_of_band.pop(answer.response.id, None)
        if self.active is answer:
            self.active = None
            self.on_end(answer.response)
        self._pay()

    def owe(self) -> None:
        """Answer a turn, once nothing else is answered; its refusal is told."""
        self._is_owed = True
        self._pay()

    def _pay(self) -> None:
        is_free = self.active is None or self.active.is_over
        if self._is_owed and is_free:
            self._is_owed = False
            if isinstance(self._settings(), RealtimeSettings):
                try:
                    self.begin({})
                except ApiError as error:
                    self._tell_error(error)

    def take_active(self) -> RealtimeAnswer | None:
        """Return the conversation's response if one is under way: it is so no more."""
        answer, self.active = self.active, None
        return None if answer is None or answer.is_over else answer

    def cancel(self, response_id: str | None) -> None:
        """End a response for the client; without an id the conversation's. Raises ApiError."""
        if response_id in (None, None if self.active is None else self.active.response.id):
            answer = self.take_active()
        else:
            answer = self._out_of_band.get(response_id or "")
        if answer is None or answer.is_over:
            message = "Cancellation failed: no active response found"
            raise ApiError(400, message, code="response_cancel_not_active")
        answer.cancel("client_cancelled")


def chat_body(
    settings: ResponseSettings,
    session: RealtimeSettings,
    speaker: str | None,
    items: Sequence[Item],
) -> Body:
    """Return the chat that a response is; takes a while with audio. Raises ApiError."""
    is_spoken = settings.output_modalities == ["audio"]
    body = {
        "model": session.model,
        "messages": messages_of(items, settings.instructions),
        "modalities": settings.chat_outputs,
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
