"""Runs the chat of a session's response, and ends it early where it is cancelled."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from omnistage.server.common.deadline import due_at
from omnistage.server.common.errors import ApiError, internal_error
from omnistage.server.common.trace import FIRST_AUDIO, FIRST_TEXT, GATEWAY
from omnistage.server.http.sse import ClientTooSlow
from omnistage.server.http.state import RequestState
from omnistage.server.realtime.ahead.held_chat import HeldChat
from omnistage.server.realtime.answer_plan import AnswerPlan
from omnistage.server.realtime.answering.response import Response
from omnistage.server.realtime.common import Common
from omnistage.server.realtime.context import ContextTruncation
from omnistage.server.realtime.transcripts import Transcripts
from omnistage.server.runtime.request import AudioOutput, Output, TextOutput

logger = logging.getLogger(__name__)

SLOW_S = 20.0  # for a client to take what was told
TOO_LONG = "context_length_exceeded"


class RealtimeAnswer:
    """Runs the chat of one response, and ends it early."""

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
