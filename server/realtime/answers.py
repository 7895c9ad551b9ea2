"""The responses that a session has under way: one of its conversation, and some out of band."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from omnistage.server.common.deadline import due_at
from omnistage.server.common.errors import ApiError, internal_error, unsupported
from omnistage.server.common.served import check_makes
from omnistage.server.common.trace import FIRST_AUDIO, FIRST_TEXT, GATEWAY
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.ahead.answer_ahead import AnswerAhead
from omnistage.server.realtime.ahead.held_chat import HeldChat
from omnistage.server.realtime.ahead.history_ahead import HistoryAhead
from omnistage.server.realtime.answer_plan import AnswerPlan
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.context import ContextTruncation, TokenRates
from omnistage.server.realtime.items import Item
from omnistage.server.realtime.response import Response
from omnistage.server.realtime.settings import (
    RealtimeSettings,
    Settings,
    TranscriptionSettings,
)
from omnistage.server.realtime.transcripts import Transcripts
from omnistage.server.realtime.updates import response_settings
from omnistage.server.runtime.request import AudioOutput, Output, TextOutput
from omnistage.stage_configs.graph_parts import session_outputs

logger = logging.getLogger(__name__)

SLOW_S = 20.0  # for a client to take what was told
MAX_OUT_OF_BAND = 4

TOO_LONG = "context_length_exceeded"
Refuse = Callable[[ApiError], None]


class RealtimeAnswer:
    """One response under way: runs its chat, and ends it early."""

    def __init__(
        self,
        response: Response,
        common: Common,
        plan: AnswerPlan,
        transcripts: Transcripts,
        truncation: ContextTruncation | None = None,
        held: HeldChat | None = None,
    ) -> None:
        self.response = response
        self._transcripts = transcripts
        self._plan = plan
        self._held = held  # made ahead
        self._truncation = truncation  # of the conversation, if it is too long
        self._common = common
        self._task: asyncio.Task[None] | None = None
        self.is_complete = False  # it has ended as the model ended it
        self.begun = asyncio.Event()  # its first words or sound have left, or it has ended

    @property
    def is_over(self) -> bool:
        """Returns whether its end has been told."""
        return self.response.is_over

    def start(self) -> asyncio.Task[None]:
        """Begin; the task raises ClientTooSlow alone."""
        self.response.begin()
        self._task = self._common.tasks.begin(self._run())
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

    async def _run(self) -> None:
        response = self.response
        state = self._common.new_answer() if self._held is None else self._held.state
        try:
            with self._common.followed(state):
                try:
                    await self._answer(state)
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
            self.is_complete = True

    async def _answer(self, state: RequestState) -> None:
        """Answer; a conversation that is too long is shortened as the session says."""
        state.charge()
        state.trace.reveal()
        if self._truncation is not None and self._truncation.fit():
            self._leave_out()
        async with due_at(state.due_at):
            if not self._common.flow.hears:
                await self._transcripts.write_down(self._plan.items)
            while True:
                try:
                    await self._make(state)
                    return
                except ApiError as error:
                    if error.code != TOO_LONG or self.response.has_output or not self._shorten():
                        raise
                finally:
                    if self._truncation is not None:
                        self._truncation.learn(self._plan.items, self.response.chat_usage)

    def _shorten(self) -> bool:
        if self._truncation is None or not self._truncation.shorten():
            return False
        self._leave_out()
        return True

    def _leave_out(self) -> None:
        """Keep the items that the conversation's context still has."""
        kept = {item.id for item in self._common.conversation.context}
        self._plan = self._plan.keeping([item for item in self._plan.items if item.id in kept])
        self._drop_held()

    def _drop_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.cancel()

    def _outputs(self) -> AsyncGenerator[Output, None]:
        """Return what was made ahead, the first time, else what is made now."""
        held, self._held = self._held, None
        return self._plan.outputs(self._common.flow) if held is None else held.outputs()

    async def _make(self, state: RequestState) -> None:
        async with aclosing(self._outputs()) as outputs:
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
        self,
        common: Common,
        settings: Callable[[], Settings],
        tell_error: Refuse,
        transcripts: Transcripts,
    ) -> None:
        self.active: RealtimeAnswer | None = None  # of the conversation
        self.on_end: Callable[[Response], None] = lambda _: None
        """Called when the conversation's response has ended of itself."""
        self._common = common
        self._settings = settings
        self._tell_error = tell_error
        self._ahead = AnswerAhead(common)
        self._transcripts = transcripts
        self.history = HistoryAhead(common, self._history_plan)
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
        chat = common.conversation.context if items is None else items
        plan = self._plan(session, given, chat)
        settings = plan.settings
        is_out_of_band = settings.conversation == "none"
        conversation = None if is_out_of_band else common.conversation
        response = Response(settings, conversation, common.conversation_id, common.tell)
        truncation = None
        if items is None:
            about = (session, settings, common.flow.runtime)
            truncation = ContextTruncation(common.conversation, self._rates, *about)
        held = None if is_out_of_band else self._ahead.take(plan)
        if not is_out_of_band:
            self.history.stop()
        answer = RealtimeAnswer(response, common, plan, self._transcripts, truncation, held)
        if is_out_of_band:
            self._out_of_band[response.id] = answer
        else:
            self.active, self._is_owed = answer, False
        task = answer.start()
        task.add_done_callback(lambda _: common.tasks.run(lambda: self._end(answer)))

    def _plan(
        self, session: RealtimeSettings, given: Mapping[str, Any], items: Sequence[Item]
    ) -> AnswerPlan:
        """Return the plan of an answer to items; raises ApiError."""
        settings = response_settings(session, given)
        flow = self._common.flow
        for modality in settings.output_modalities:
            check_makes(modality, session_outputs(flow.runtime.graph), modality)
        voice = settings.audio.output.voice
        speaker = flow.speaker_of(voice, "response.audio.output.voice")
        return AnswerPlan.of(settings, session.model, speaker, items)

    def begin_ahead(self, item: Item) -> None:
        """Begin the answer to an item that may be the next, in secret."""
        plan = self._free_plan([item])
        if plan is not None:
            self._ahead.begin(item.id, plan)

    def _history_plan(self) -> AnswerPlan | None:
        return self._free_plan([])

    def _free_plan(self, more: Sequence[Item]) -> AnswerPlan | None:
        """Return the plan of the next answer; None while there is one, or if there will be none.

        One to words alone waits for transcripts: nothing of it is begun.
        """
        if not self._common.flow.hears:
            return None
        session = self._settings()
        is_free = self.active is None or self.active.is_over
        if not is_free or self._is_owed or not isinstance(session, RealtimeSettings):
            return None
        try:
            return self._plan(session, {}, [*self._common.conversation.context, *more])
        except ApiError:  # it is reported by the answer
            return None

    def drop_ahead(self) -> None:
        """Cancel the answer that was begun in secret: what it answers has changed."""
        self._ahead.drop()

    def _end(self, answer: RealtimeAnswer) -> None:
        self._out_of_band.pop(answer.response.id, None)
        if self.active is answer:
            self.active = None
            if answer.is_complete:
                self.history.note_read()
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
